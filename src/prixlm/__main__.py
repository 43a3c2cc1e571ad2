"""`python -m prixlm`: the command line, for `torchrun -m prixlm`."""

from prixlm.cli import main

main()
