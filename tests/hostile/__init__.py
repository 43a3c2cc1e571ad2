"""Attacks on everything that reads input: one file for each kind, over every command and endpoint.

Each file has a small budget in `make test`. `make test-full` has a large one, `PRIXLM_TEST_FULL=6`
six times that, and `PRIXLM_HOSTILE_SEED` draws other inputs. `docs/reference/limits.md` says what
holds.
"""
