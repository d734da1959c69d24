"""The camelCased names of titles: of polls, and of dimensions and reports in Matomo."""

import re

_WORD: re.Pattern[str] = re.compile(r"[^\W_]+")
_APOSTROPHE = re.compile(r"['\u2019]")


def camel_case(title: str) -> str:
    """The camelCased name of a title: its words without separators, all but the first one capitalised.

    Words are made of letters and digits of any script; an apostrophe does not end a word. A word in capitals
    is treated as one in lower case, and capitals inside a word are kept: `Who's the FIFA cup's "MVP"?`
    becomes `whosTheFifaCupsMvp`. The name of a title without a word is "".
    """
    words = [word.lower() if word.isupper() else word for word in _WORD.findall(_APOSTROPHE.sub("", title))]
    return "".join(word[:1].lower() + word[1:] for word in words[:1]) + "".join(
        word[:1].upper() + word[1:] for word in words[1:]
    )
