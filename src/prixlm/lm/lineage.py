"""What a model was trained on, and whether it may be evaluated on a KB.

    lineage = Lineage.from_dict(values["trained"])
    lineage.check_unseen_facts(kb, "the model")

A confidence that is fitted on facts which the model has memorised is far too high, and withheld
links do not test an encoder that was trained on them. So everything that is trained carries its
lineage, as `trained` in its `prixlm.json`, and everything that evaluates or fits checks it first.
"""

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from prixlm.config import checked
from prixlm.errors import PrixError
from prixlm.kb.store import KB

logger = logging.getLogger(__name__)
_SAME_TESTS = ("hidden-links", "unsplit")
"""Methods of splits that hold out no fact which the KB they were made from has in train."""


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """What a model was trained on. Fields that do not apply are None and are not written."""

    base: str | None = None  # the model that training started from
    variant: str | None = None  # All or Single
    sources: list[str] | None = None  # files that the KB was imported from
    licence_of_the_data: str | None = None  # as the KB states it
    kb_fingerprint: str | None = None  # the KB whose train facts it was trained on
    earlier_kbs: list[str] | None = None  # fingerprints of the KBs its base was trained on
    triples: dict[str, int] | None = None  # train triples of the KB, by language
    triples_carried_along_links: int | None = None  # added from other languages
    links_an_epoch: dict[str, int] | None = None  # by language of the subject
    triples_too_long: dict[str, int] | None = None  # left out by the length rule, by language
    links_too_long: dict[str, int] | None = None  # left out by the length rule, by language
    epochs: int | None = None  # passes over the facts
    steps: int | None = None  # updates of the weights
    facts_a_step: int | None = None  # facts in one update
    learning_rate: float | None = None  # highest of the schedule
    seed: int | None = None  # of weights, batches and dropout
    links_of_kb: str | None = None  # the KB whose links Mirror used as positives

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Lineage":
        """Read what `as_dict` wrote; names that this version does not know are left out.

        ValueError if a value is of another kind.
        """
        known = get_type_hints(cls)
        checked(values, known, optional=known)
        return cls(**{name: value for name, value in values.items() if name in known})

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that apply, in their order, for JSON and the model card."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def with_links(self, kb: KB) -> "Lineage":
        """Return the lineage after a further training on the links of `kb`."""
        earlier = self.earlier_kbs
        if self.links_of_kb not in (None, kb.fingerprint()):  # there is room for one such KB
            earlier = [*(earlier or ()), str(self.links_of_kb)]
        return dataclasses.replace(self, links_of_kb=kb.fingerprint(), earlier_kbs=earlier)

    @property
    def kbs(self) -> list[str]:
        """Fingerprints of all KBs whose facts or links it may have seen, the oldest first."""
        fingerprints = [*(self.earlier_kbs or ()), self.kb_fingerprint, self.links_of_kb]
        return [fingerprint for fingerprint in fingerprints if fingerprint]

    @property
    def link_kbs(self) -> set[str]:
        """Fingerprints of the KBs whose links it may have seen.

        What a base saw before is not recorded in detail, so earlier KBs count as a whole.
        """
        fingerprints = {*(self.earlier_kbs or ()), self.links_of_kb}
        if self.links_an_epoch or self.triples_carried_along_links:
            fingerprints.add(self.kb_fingerprint)
        return {fingerprint for fingerprint in fingerprints if fingerprint}

    @property
    def facts_by_language(self) -> dict[str, dict[str, int]]:
        """Counts by language of triples and of links, then of those that are too long."""
        return {
            "triples": self.triples or {},
            "links an epoch": self.links_an_epoch or {},
            "triples too long": self.triples_too_long or {},
            "links too long": self.links_too_long or {},
        }

    def check_unseen_facts(self, kb: KB, what: str, split: KB | None = None) -> None:
        """Refuse a model that was trained on anything but the train facts and links of `kb`.

        what: names the model in the error, such as "the encoder". split: a split of `kb`, which
        may be trained on instead: it knows less.
        """
        kbs = set(self.kbs)
        # Nothing but this KB: its fingerprint covers which facts are train and which are held out.
        if kbs == {kb.fingerprint()} or (split is not None and kbs == {split.fingerprint()}):
            return
        if _parent(kb) in kbs:
            raise PrixError(
                f"{what} was trained on the KB that {kb.folder} is a split of, and so on the held "
                "out facts that its confidence would be fitted on. Train one on the split itself."
            )
        raise PrixError(
            f"{what} was trained on another KB than {kb.folder}, perhaps on the facts that its "
            f"confidence would be fitted on. Train one on {kb.folder} alone."
        )

    def check_tested_facts(self, kb: KB, what: str) -> None:
        """Refuse a model that was trained on the held-out facts of a split; warn if unsure.

        For measuring, where a model of another KB, or one that says nothing about its training, is
        welcome. what: names the model in the error.
        """
        split = kb.manifest.split or {}
        harmless = {kb.fingerprint()}
        if split.get("method") in _SAME_TESTS:
            harmless.add(str(split.get("from")))
        elif _parent(kb) in self.kbs:
            raise PrixError(
                f"{what} was trained on the KB that {kb.folder} is a split of, and so on the held "
                "out facts that it would be asked for. Train one on the split itself."
            )
        if set(self.kbs) - harmless:
            logger.warning(
                "%s was trained on another KB, perhaps on the held-out facts of %s. Its figures "
                "mean nothing if it was.",
                what,
                kb.folder,
            )

    def check_unseen_links(self, kb: KB, what: str) -> None:
        """Refuse a model that was trained on the withheld links of a split; warn if unsure.

        what: names the model in the error, such as "the encoder".
        """
        if _parent(kb) in self.link_kbs:
            raise PrixError(
                f"{what} was trained on the KB that {kb.folder} is a split of, and so on the "
                "withheld links that it would be asked for. Train one on the split itself."
            )
        if self.link_kbs - {kb.fingerprint()}:
            logger.warning(
                "%s was trained on another KB, perhaps on the withheld links of %s.",
                what,
                kb.folder,
            )


def _parent(kb: KB) -> str | None:
    """Return the fingerprint of the KB that a split was made from; None for any other KB."""
    parent: str | None = (kb.manifest.split or {}).get("from")
    return parent
