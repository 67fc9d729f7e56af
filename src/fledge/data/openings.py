"""Beginnings of user turns: a category, a few neutral words, and words drawn to fill them.

A small target left alone writes prompts of few kinds. A short opening steers the kind and a drawn word the
subject; the target writes the rest.
"""

from __future__ import annotations

from fledge.data.options import Opening

DEFAULT_MIX: dict[str, float] = {
    "chat": 3.0,
    "writing": 2.0,
    "roleplay": 1.0,
    "reasoning": 1.5,
    "math": 3.0,
    "code": 3.5,
    "extraction": 1.0,
    "stem": 1.5,
    "humanities": 1.5,
    "summarisation": 1.0,
    "rewriting": 1.0,
}

_TEXTS: dict[str, tuple[str, ...]] = {
    "chat": (
        "",
        "What",
        "How do I",
        "Can you",
        "I'm",
        "Why",
        "What is the best way to",
        "Give me",
        "I need help with",
        "Tell me about {topic}",
        "What should I know about {topic}",
        "As a {job}, I",
        "I'm planning a trip to {place}",
    ),
    "writing": (
        "Write a",
        "Write a short story about a {job}",
        "Write an email to",
        "Write a blog post about {topic}",
        "Compose a poem about",
        "Create a",
        "Draft a letter",
        "Describe",
        "Write an essay about {topic}",
        "Come up with",
        "Write a speech",
        "Write a review of",
    ),
    "roleplay": (
        "You are a {job}.",
        "Act as a {job}",
        "Pretend you are",
        "Imagine you are a {job}",
        "Let's play a game.",
        "I want you to act as",
        "Take the role of",
    ),
    "reasoning": (
        "If",
        "Which of these",
        "{name} is taller than",
        "There are {number} people in",
        "Explain step by step why",
        "Compare",
        "What are the pros and cons of {topic}",
        "Is it true that",
        "Suppose that",
        "{name}, {name} and {name} are",
    ),
    "math": (
        "{name} has {number} {object}",
        "{name} buys {number} {object}",
        "{name} is {number} years old",
        "{name} wants to buy {object}",
        "{name} and {name} share {number} {object}",
        "A {job} earns",
        "There are {number} {object}",
        "{name} sells {object}",
        "A store sells {object} for",
        "In a class of {number}",
        "It takes {name} {number} minutes to",
        "{name}'s {object}",
        "{name} has twice as many {object} as",
        "A box of {object} costs ${number}.",
        "Every day, {name} makes {number} {object}",
        "{name} saved ${number}",
        "Solve the equation",
        "Calculate the",
        "Find the value of",
        "What is {number}% of",
        "A train",
        "A rectangle",
    ),
    "code": (
        "Write a Python function",
        "Write a function that",
        "Write a Python function called {function} that",
        "Write a program",
        "Write a {language} program that",
        "How do I {code_task} in {language}",
        "Write a script to {code_task}",
        "Write an SQL query",
        "Explain the following code:\n\n```python\n",
        "What does this function do?\n\ndef {function}(",
        "Fix the bug in this code:\n\n```python\ndef {function}(",
        "Create a class",
        "Implement",
    ),
    "extraction": (
        "Extract the",
        "Identify the",
        "List all the",
        "From the following text, extract",
        "Extract all names and dates from this text:\n\n{name} and {name} met in",
        "Read the following passage and answer the question.\n\nThe",
        "What are the key facts in this report? Answer as a list.\n\nIn",
        "Classify the following",
        "Given the following text about {topic}:\n\nMany",
        "Read this message and tell me who does what:\n\nHi {name},",
    ),
    "stem": (
        "Explain how",
        "What happens when",
        "What is the difference between",
        "How does {topic}",
        "Explain the concept of",
        "Describe the process of",
        "What causes",
        "Why do",
    ),
    "humanities": (
        "How did",
        "What was the",
        "Discuss the",
        "Analyze",
        "Who was",
        "Explain the significance of",
        "What role did {topic}",
        "Compare and contrast",
        "What is the history of {topic}",
    ),
    "summarisation": (
        "Summarize the following text:\n\nThe",
        "Summarize this article in one sentence:\n\nScientists",
        "Summarize the following text:\n\nIn recent years, {topic}",
        "Give me a short summary of this paragraph about {topic}:\n\nOne of",
        "What is the main idea of this text?\n\nPeople",
        "Write a brief summary of",
        "Summarize this meeting in three bullet points:\n\n{name} said",
        "Condense the following passage about {topic}.\n\nAlthough",
    ),
    "rewriting": (
        "Rewrite the following sentence",
        "Rewrite this paragraph to make it more concise.\n\nThe",
        "Make this email more friendly:\n\nDear {name},",
        "Correct the grammar in this text:\n\nYesterday",
        "Translate the following sentence into {human_language}:",
        "Paraphrase",
        "Improve the wording of this message:\n\nHi {name},",
        "Turn this into a list:\n\nFirst",
        "Rewrite this in simpler words: {topic}",
    ),
}

# Word problems end with their question; otherwise a small target goes on to answer it.
_ENDS = {"math": "?"}
_NOT_A_QUESTION = ("Solve", "Calculate", "Find")

# Functions to complete: the target writes the docstring, and the turn ends with it.
_FUNCTIONS = (
    'Complete the following Python function:\n\ndef {signature}:\n    """',
    'Complete this function.\n\ndef {signature}:\n    """',
    "Finish the function below.\n\ndef {signature}:\n    '''",
    'Implement the function described in its docstring:\n\ndef {signature}:\n    """',
    'def {signature}:\n    """',
    'from typing import List\n\n\ndef {signature}:\n    """',
    'Complete this function:\n\ndef {signature}:\n    """\n    >>>',
    'Please fill in the body of this function.\n\nimport math\n\ndef {signature}:\n    """',
)

DEFAULT_OPENINGS: tuple[Opening, ...] = (
    *(
        Opening(
            category=category,
            text=text,
            until=None if text.startswith(_NOT_A_QUESTION) else _ENDS.get(category),
        )
        for category, texts in _TEXTS.items()
        for text in texts
    ),
    *(
        Opening(category="code", text=text, until="'''" if "'''" in text else '"""', weight=2.0)
        for text in _FUNCTIONS
    ),
)
