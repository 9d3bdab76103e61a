"""What travels between a federator and its clients, who is heard, how a round is decided, and what is written down.

No torch, no clock, no sockets: the shells that do I/O are in `cyber0.network`.
"""
