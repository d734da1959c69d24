"""The camelCased names of titles: of polls, and of dimensions and reports in Matomo."""

import re
import unicodedata

MAX_CHARACTERS = 1_000
"""So much of a title is looked at: to normalise a run of n marks takes n² steps, 1 ms for this many."""

_WORD = re.compile(r"[^\W_]\S*")
# They end no word and cannot be seen in a name: apostrophes, joiners, selectors of a variant.
_LEFT_OUT = re.compile("['\u2019\u200c\u200d\ufe00-\ufe0f]")
_IN_WORDS = frozenset(("Lu", "Ll", "Lt", "Lm", "Lo", "Nd", "Nl", "No", "Mn", "Mc"))


def camel_case(title: str) -> str:
    """The camelCased name of a title: its words without separators, all but the first one capitalised.

    Words are made of letters, digits and the marks on them, of any script, in the composed form (NFC); an
    apostrophe does not end a word. A word in capitals is treated as one in lower case, and capitals inside a
    word are kept: `Who's the FIFA cup's "MVP"?` becomes `whosTheFifaCupsMvp`. The name of a title without a
    word in its first 1,000 characters is "".
    """
    words = [word.lower() if word.isupper() else word for word in _words(title[:MAX_CHARACTERS])]
    return "".join(word[:1].lower() + word[1:] for word in words[:1]) + "".join(
        word[:1].upper() + word[1:] for word in words[1:]
    )


def _words(title: str) -> list[str]:
    text = unicodedata.normalize("NFC", _LEFT_OUT.sub("", title))
    gaps = {ord(each): " " for each in set(text) if unicodedata.category(each) not in _IN_WORDS}
    return _WORD.findall(text.translate(gaps))  # a mark without a letter before it begins no word
