"""Chat templates: as transformers renders them, in a sandbox, refusals in their own words."""

from datetime import datetime
from typing import Any

import pytest

from firmtoken.runtime.dialects.chatml import BadTemplate, ChatTemplate, TemplateRefused


def noon() -> datetime:
    return datetime(2026, 1, 2, 12)


def render(source: str, messages: Any = (), **variables: object) -> str:
    template = ChatTemplate(
        source,
        special_tokens={"eos_token": "<end>"},
        now=noon,
    )
    return template.render(messages, add_generation_prompt=True, variables=variables)


def test_blocks_are_trimmed_as_transformers_does() -> None:
    source = "{% for message in messages %}\n    {% if true %}\n{{ message.role }}\n{% endif %}{% endfor %}"
    assert render(source, [{"role": "user"}, {"role": "assistant"}]) == "user\nassistant\n"


def test_special_tokens_and_variables_are_in_reach() -> None:
    assert render("{{ eos_token }}{{ x }}{{ add_generation_prompt }}", x=1) == "<end>1True"


def test_json_is_not_escaped_for_html() -> None:
    assert render("{{ x | tojson }}", x={"a": "<é>"}) == '{"a": "<é>"}'
    assert render("{{ x | tojson(indent=1) }}", x=[1]) == "[\n 1\n]"


def test_the_date_is_an_argument() -> None:
    assert render("{{ strftime_now('%d %b %Y') }}") == "02 Jan 2026"
    assert render("{{ strftime_now(format='%Y') }}") == "2026"


def test_loop_controls_and_generation_marks_are_known() -> None:
    assert (
        render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "01"
    )
    assert render("a{% generation %}b{{ x }}{% endgeneration %}c", x=1) == "ab1c"


def test_namespaces_and_dicts_work() -> None:
    assert render("{% set n = namespace(a=1) %}{% set n.b = 2 %}{{ n.a + n.b }}") == "3"
    assert render("{{ dict(a=1, b=2) | length }}") == "2"


def test_a_refusal_is_the_templates_own_sentence() -> None:
    with pytest.raises(TemplateRefused) as refusal:
        render("{{ raise_exception('Only one system message, please.') }}")
    assert str(refusal.value) == "Only one system message, please."


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[5].content.x }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content * messages }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_template_that_fails_is_a_refusal(source: str) -> None:
    with pytest.raises(TemplateRefused):
        render(source, [{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ dict.fromkeys.__self__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{% set n = namespace(__class__=1) %}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ range(999999999) | length }}",
        "{{ raise_exception.__globals__.json }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(TemplateRefused):
        render(source, [{"role": "user"}])


def test_a_template_that_writes_without_end_is_stopped() -> None:
    source = "{% for i in range(99999) %}{% for j in range(99999) %}{{ x }}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateRefused, match="wrote more than"):
        render(source, x="x" * 2**20)


def test_a_template_that_does_not_compile_names_its_line() -> None:
    with pytest.raises(BadTemplate, match=r"^does not compile: line 2: "):
        ChatTemplate("fine\n{% for %}", special_tokens={}, now=noon)


def test_request_variables_cannot_replace_the_messages() -> None:
    template = ChatTemplate("{{ messages | length }}", special_tokens={}, now=noon)
    variables = {"messages": []}
    text = template.render([{"role": "user"}], add_generation_prompt=True, variables=variables)
    assert text == "1"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "makes an empty prompt"),
        ("{% if tools %}x{% endif %}", "makes an empty prompt"),
        ("{{ raise_exception('no') }}", "fails on one message of a user: no"),
        ("a{{ mesages }}", "fails on one message of a user: 'mesages' is undefined"),
        ("a{{ mesages[0].content }}", "fails on one message of a user: 'mesages' is undefined"),
        ("{{ 1 / 0 }}", "fails on one message of a user: division by zero"),
    ],
)
def test_a_template_that_no_chat_could_use_is_found_at_once(source: str, message: str) -> None:
    with pytest.raises(BadTemplate, match=f"^{message}"):
        ChatTemplate(source, special_tokens={}, now=noon).try_out()


def test_absent_fields_and_special_tokens_are_no_fault() -> None:
    source = (
        "{{ bos_token }}{{ messages[0].name }}{% if tools %}{% endif %}{{ messages[0].content }}"
    )
    ChatTemplate(source, special_tokens={}, now=noon).try_out()


def test_a_template_that_wants_all_memory_is_a_refusal() -> None:
    with pytest.raises(TemplateRefused, match="more memory than there is"):
        render("{{ 'a' * length }}", length=10**15)
