"""What a model was trained on, and whether it may be asked about a KB.

    lineage = Lineage.from_dict(settings["trained"])
    lineage.check_unseen_facts(kb, "the model")

A confidence that is fitted on facts which a model has learnt by heart would be far too high, and an
encoder that has seen the withheld links is not tested by them. So whatever is trained carries its
lineage, as `trained` in its `prixlm.json`, and everything that evaluates or fits asks it first.
"""

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prixlm.errors import PrixError
from prixlm.kb.store import KB

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """What a model was trained on. Fields that do not apply are None and are not written."""

    base: str | None = None  # the model it started from
    variant: str | None = None  # All or Single
    sources: list[str] | None = None  # of the KB
    licence_of_the_data: str | None = None
    kb_fingerprint: str | None = None  # the KB whose train facts it learnt
    earlier_kbs: list[str] | None = None  # fingerprints of the KBs that its base had learnt
    triples: dict[str, int] | None = None  # by language
    triples_carried_along_links: int | None = None
    links_an_epoch: dict[str, int] | None = None  # by language
    triples_too_long: dict[str, int] | None = None  # left out, by language
    links_too_long: dict[str, int] | None = None
    epochs: int | None = None
    steps: int | None = None
    facts_a_step: int | None = None
    learning_rate: float | None = None
    seed: int | None = None
    links_of_kb: str | None = None  # the KB whose links were positives of Mirror

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Lineage":
        """Read what `as_dict` wrote; names that this version does not know are left out."""
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that apply, in their order, for JSON and the model card."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def kbs(self) -> list[str]:
        """Fingerprints of all KBs whose facts or links it may have seen, the oldest first."""
        found = [*(self.earlier_kbs or ()), self.kb_fingerprint, self.links_of_kb]
        return [fingerprint for fingerprint in found if fingerprint]

    @property
    def link_kbs(self) -> set[str]:
        """Fingerprints of the KBs whose links it may have seen.

        What a base saw before is not recorded in detail, so earlier KBs count as a whole.
        """
        seen = {*(self.earlier_kbs or ()), self.links_of_kb}
        if self.links_an_epoch or self.triples_carried_along_links:
            seen.add(self.kb_fingerprint)
        return {fingerprint for fingerprint in seen if fingerprint}

    def check_unseen_facts(self, kb: KB, what: str) -> None:
        """Refuse anything that was trained on more than this KB's own train facts and links."""
        seen = set(self.kbs)
        if seen == {kb.fingerprint()}:
            return
        if _parent(kb) in seen:
            raise PrixError(
                f"{what} was trained on the KB that {kb.folder} is a split of, and so on the "
                "facts that its confidence would be fitted on: train one on the split itself."
            )
        raise PrixError(
            f"{what} was trained on another KB than {kb.folder}, perhaps on the facts that its "
            f"confidence would be fitted on: train one on {kb.folder} alone."
        )

    def check_unseen_links(self, kb: KB, what: str) -> None:
        """Refuse what was trained on the links that a split withholds; warn if it may have been."""
        if _parent(kb) in self.link_kbs:
            raise PrixError(
                f"{what} was trained on the KB that {kb.folder} is a split of, and so on the links "
                "that it would be asked for: train one on the split itself."
            )
        if self.link_kbs - {kb.fingerprint()}:
            logger.warning("%s was trained on another KB, perhaps on the links asked for", what)


def _parent(kb: KB) -> str | None:
    """The fingerprint of the KB that a split was made from."""
    parent: str | None = (kb.manifest.split or {}).get("from")
    return parent
