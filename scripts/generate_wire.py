"""Make src/cyber0/protocol/wire_pb2.py and its .pyi of wire.proto; needs grpcio-tools."""

import sys
from pathlib import Path

from grpc_tools import protoc

SOURCE = Path(__file__).resolve().parents[1] / "src"


def main() -> int:
    """Generate both files; the exit code is the compiler's."""
    return protoc.main(
        ["protoc", f"-I{SOURCE}", f"--python_out={SOURCE}", f"--pyi_out={SOURCE}", "cyber0/protocol/wire.proto"]
    )


if __name__ == "__main__":
    sys.exit(main())
