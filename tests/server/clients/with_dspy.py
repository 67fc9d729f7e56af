# /// script
# dependencies = ["dspy==3.4.1"]
# ///
"""DSPy: signatures in its chat and JSON forms."""

import dspy
from trial import MODEL, URL, tried

lm = dspy.LM(
    f"openai/{MODEL}", api_base=f"{URL}/v1", api_key="none", temperature=0, max_tokens=200, cache=False
)


class Ask(dspy.Signature):
    """Answer the question in one sentence."""

    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


@tried("chat")
def chat():
    assert lm("Why is the sky blue?")[0]


@tried("signature as JSON")
def signature():
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        assert dspy.Predict(Ask)(question="Why is the sky blue?").answer


@tried("signature as chat")
def text():
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
        assert dspy.Predict(Ask)(question="Why is the sky blue?").answer
