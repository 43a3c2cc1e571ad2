"""Attacks on everything that reads input: one file for each kind, over every command and endpoint.

Each file has a small budget in `make test`. `PRIXLM_TEST_FULL=1` (`make test-full`) multiplies it,
and `PRIXLM_HOSTILE_SEED` draws other inputs. `docs/reference/limits.md` says what holds.
"""
