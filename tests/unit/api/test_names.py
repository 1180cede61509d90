"""Names: that Kubernetes accepts every one of them."""

import re

from caretaker.api import names

# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
KEY = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
CONSTANTS = {k: v for k, v in vars(names).items() if k.isupper()}


def test_labels_and_annotations_are_qualified_names() -> None:
    keys = [v for v in CONSTANTS.values() if "/" in v and v != names.API_VERSION]
    assert len(keys) >= 12
    assert [key for key in keys if not KEY.fullmatch(key)] == []


def test_all_of_ours_stand_under_our_group_or_a_recommended_one() -> None:
    keys = [v for v in CONSTANTS.values() if "/" in v]
    assert {key.split("/")[0] for key in keys} == {names.GROUP, "app.kubernetes.io"}


def test_annotations_of_a_pod_are_distinct() -> None:
    annotations = [v for k, v in CONSTANTS.items() if k.startswith("POD_")]
    assert len(annotations) == len(set(annotations))


def test_environment_names_are_c_identifiers() -> None:
    variables = [v for k, v in CONSTANTS.items() if k.startswith("ENV_")]
    assert len(variables) == 4
    assert [v for v in variables if not re.fullmatch("[A-Z_]+", v)] == []
