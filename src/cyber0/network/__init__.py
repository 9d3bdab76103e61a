"""Federations over the network: one gRPC stream per client."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # before gRPC is imported: what is wrong is said in our own words
