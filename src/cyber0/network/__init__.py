"""Federations over the network: one gRPC stream per client."""
