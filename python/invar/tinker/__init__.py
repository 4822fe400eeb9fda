"""An open Tinker server over invar's trainer and engine: `python -m invar.tinker MODEL` (docs/TINKER.md).

Its routes, types and protobufs are those of the `tinker` client, which the extra `invar[tinker]` installs."""
