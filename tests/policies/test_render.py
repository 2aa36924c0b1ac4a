import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from interlace.policies import Renderer, RenderError
from interlace.policies.scratch import character_tokenizer
from interlace.types import Problem

CHATML = (
    "{% for m in messages %}<s>{{ m['role'] + '\n' + m['content'] }}<e>{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
FORGETFUL = (
    "{% for m in messages %}<s>{{ m['role'] + '\n' }}"
    "{% if loop.last or m['role'] == 'assistant' %}{{ m['content'] }}{% endif %}<e>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
USER = [{"role": "user", "content": "2+3"}]
TURNS = [
    {"role": "system", "content": "Add."},
    {"role": "user", "content": "1+1"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "2+2"},
]


def chat_tokenizer(template=CHATML, **special):
    """Bytes as tokens, with <s> before and <e> after a turn."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = {"bos_token": "<s>", "eos_token": "<e>", "pad_token": "<e>", **special}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=template, clean_up_tokenization_spaces=False, **names
    )


def renderer(template=CHATML, chat=None):
    tokenizer = chat_tokenizer(template)
    return Renderer(tokenizer, (tokenizer.eos_token_id,), chat)


def shown(r, ids):
    return r.tokenizer.decode(ids)


def test_a_chat_prompt_ends_with_the_header_and_the_target_is_content_and_end_of_turn():
    r = renderer()
    problem = Problem("p", USER, demonstration="5")
    assert shown(r, r.prompt_ids(problem)) == "<s>user\n2+3<e>\n<s>assistant\n"
    assert shown(r, r.demonstration_ids(problem)) == "5<e>"


def test_prompt_and_demonstration_are_a_prefix_of_the_rendered_conversation():
    r = renderer()
    problem = Problem("p", TURNS, demonstration="4, of course")
    whole = r.tokenizer.apply_chat_template(
        [*TURNS, {"role": "assistant", "content": "4, of course"}], tokenize=True, return_dict=False
    )
    ids = r.prompt_ids(problem) + r.demonstration_ids(problem)
    assert whole[: len(ids)] == ids
    # What follows the end of the turn is the template's, not the model's.
    assert shown(r, whole[len(ids) :]) == "\n"


def test_in_a_conversation_that_ends_with_an_answer_only_the_last_answer_is_the_target():
    r = renderer()
    problem = Problem("p", [*TURNS, {"role": "assistant", "content": "4"}])
    assert r.prompt_ids(problem) == r.prompt_ids(Problem("p", TURNS))
    assert shown(r, r.demonstration_ids(problem)) == "4<e>"


def test_an_end_token_that_is_also_the_padding_is_supervised():
    r = renderer()
    assert r.tokenizer.pad_token_id == r.tokenizer.eos_token_id
    assert r.demonstration_ids(Problem("p", USER, demonstration="5"))[-1] == r.tokenizer.eos_token_id


def test_text_prompts_stay_text_unless_chat_is_asked_for():
    problem = Problem("p", "2+3=", demonstration="5")
    r = renderer()
    assert shown(r, r.prompt_ids(problem)) == "2+3="
    assert shown(r, r.demonstration_ids(problem)) == "5<e>"
    wrapped = renderer(chat=True)
    assert shown(wrapped, wrapped.prompt_ids(problem)) == "<s>user\n2+3=<e>\n<s>assistant\n"
    assert shown(wrapped, wrapped.demonstration_ids(problem)) == "5<e>"


def test_without_chat_the_contents_of_messages_are_joined():
    r = renderer(chat=False)
    assert shown(r, r.prompt_ids(Problem("p", TURNS))) == "Add.\n1+1\n2\n2+2"


def test_targets_of_a_character_model_are_the_completion_and_its_end():
    tokenizer = character_tokenizer("0123456789+= ")
    r = Renderer(tokenizer, (tokenizer.eos_token_id,))
    problem = Problem("p", "12+3=", demonstration=" 15")
    assert r.prompt_ids(problem) == tokenizer("12+3=").input_ids
    assert r.demonstration_ids(problem) == [*tokenizer(" 15").input_ids, tokenizer.eos_token_id]
    assert r.decode(r.demonstration_ids(problem)) == " 15"


def test_a_tokenizer_that_begins_text_with_a_token_gets_exactly_one():
    from tokenizers.processors import TemplateProcessing

    tokenizer = chat_tokenizer()
    begin = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", begin)]
    )
    r = Renderer(tokenizer, (tokenizer.eos_token_id,))
    assert r.prompt_ids(Problem("p", "2+3"))[:2] == [
        begin,
        tokenizer("2", add_special_tokens=False).input_ids[0],
    ]
    assert begin not in r.demonstration_ids(Problem("p", "2+3", demonstration="5"))
    assert r.prompt_ids(Problem("p", USER)).count(begin) == 2


def test_a_template_that_rewrites_the_prompt_once_answered_is_refused():
    r = renderer(FORGETFUL)
    with pytest.raises(RenderError, match=r"'p': the chat template is not prefix-stable"):
        r.demonstration_ids(Problem("p", USER, demonstration="5"))


def test_a_template_without_an_end_token_is_refused():
    r = renderer(CHATML.replace("<e>", ""))
    with pytest.raises(RenderError, match="never stop"):
        r.demonstration_ids(Problem("p", USER, demonstration="5"))


@pytest.mark.parametrize("prompt", [USER, "2+3"])
def test_a_demonstration_that_holds_an_end_token_is_refused(prompt):
    r = renderer()
    with pytest.raises(RenderError, match="end token"):
        r.demonstration_ids(Problem("p", prompt, demonstration="5<e>6"))


def test_thoughts_that_the_template_opens_are_part_of_what_is_sampled():
    r = renderer(CHATML.replace("{{ m['role'] + '\n' + m['content'] }}", "{{ m['role'] + '\n' }}"
        "{% if m['role'] == 'assistant' %}<think></think>{% endif %}{{ m['content'] }}"))  # fmt: skip
    assert shown(r, r.demonstration_ids(Problem("p", USER, demonstration="5"))) == "<think></think>5<e>"


def test_problems_that_cannot_be_written_say_which_and_why():
    tokenizer = character_tokenizer("0123456789+=")
    r = Renderer(tokenizer, (1,))
    with pytest.raises(RenderError, match=r"'x7': the tokenizer has no token for 'ab'"):
        r.prompt_ids(Problem("x7", "1+ab1=".replace(" ", "")))
    with pytest.raises(RenderError, match="no chat template"):
        r.prompt_ids(Problem("x7", USER))
    with pytest.raises(RenderError, match="empty"):
        r.prompt_ids(Problem("x7", ""))
    with pytest.raises(RenderError, match="no demonstration"):
        r.demonstration_ids(Problem("x7", "1+1="))
    with pytest.raises(ValueError, match="no chat template"):
        Renderer(tokenizer, (1,), chat=True)
    with pytest.raises(ValueError, match="eos_ids"):
        Renderer(tokenizer, ())


def test_a_template_s_own_complaint_names_the_problem():
    r = renderer("{{ raise_exception('No user query found') }}")
    with pytest.raises(RenderError, match=r"'p': the chat template refuses .*No user query found"):
        r.prompt_ids(Problem("p", USER))


def test_decoding_leaves_out_special_tokens_and_nothing_else():
    r = renderer()
    ids = r.tokenizer(" two  spaces .<e>").input_ids
    assert r.decode(ids) == " two  spaces ."
