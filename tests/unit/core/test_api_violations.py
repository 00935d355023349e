"""A violation in words, where the manifests' own tests do not reach."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import Field, ValidationError

from onewriter_core.api.common import ApiModel
from onewriter_core.api.violations import in_words


class Recipe(ApiModel):
    """Stands for a resource with a constraint that has no words of its own yet."""

    eggs: Annotated[int, Field(multiple_of=6)] = 6
    steps: dict[str, str]


def said(document: dict[str, object]) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        Recipe.from_document(document)
    return in_words(Recipe, caught.value)


def test_a_constraint_without_a_message_has_the_message_of_pydantic() -> None:
    (phrase,) = said({"eggs": 5, "steps": {}})
    assert phrase.startswith(", eggs: ")
    assert "multiple of 6" in phrase


def test_free_keys_are_shown_as_keys() -> None:
    assert said({"steps": {"first step": 1}}) == [", steps['first step']: must be a string"]
    (phrase,) = said({"steps": {5: "x"}})
    assert phrase == ", steps[5]: the key must be a string"
