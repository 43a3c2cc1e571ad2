"""`python -m prixlm`: the command line, for `torchrun -m prixlm`."""

from prixlm.cli.app import main

main()
