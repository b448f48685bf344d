"""What the environment says of the hub and cannot be obeyed: a sentence, before anything is asked."""

import pytest
from huggingface_hub import close_session

from firmtoken.runtime.weights.hub import usual_hub
from firmtoken.runtime.weights.hub_errors import HubError


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("HF_TOKEN", "t\u00f6ken", "is none"),
        ("http_proxy", "foo://bar", "cannot be asked as the environment says"),
        ("SSL_CERT_FILE", "/nowhere", "cannot be asked as the environment says"),
    ],
)
def test_a_variable_that_cannot_be_used_is_said_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, sentence: str
) -> None:
    close_session()
    monkeypatch.setenv(variable, value)
    with pytest.raises(HubError, match=sentence):
        usual_hub()
    close_session()
