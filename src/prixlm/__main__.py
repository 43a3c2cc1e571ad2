"""`python -m prixlm`: the command line, also for `torchrun -m prixlm`."""

from prixlm.cli.app import main

main()
