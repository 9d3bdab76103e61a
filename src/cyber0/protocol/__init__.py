"""The protocol of a federation: its messages, which votes count, how a round is decided, and the ledger.

Nothing here needs torch, reads a clock or opens a socket: `cyber0.network` does that.
"""
