"""Odd text on which two encoders are compared before one stands in for the other: about 1,000 strings, 16 KB."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product

_SCRIPTS = (
    "English, don't DON'T I'll we've they're it's IT'S",
    "Größe straße STRASSE ẞ Übergröße",
    "le cœur déjà vu, naïve façade l'été",
    "İstanbul ısı ΌΣΟΣ ὈΔΥΣΣΕΎΣ ΐ ά λόγος",
    "Привет, мир! Ёлка подъезд Її ґ",
    "Աշխարհ և գիր",
    "שלום עוֹלָם בְּרֵאשִׁית",
    "مرحبا بالعالم ﷺ السَّلامُ عَلَيْكُمْ ٣٤٥ ۴۵۶",
    "ܫܠܡܐ ޖަޒީރާ ߒߞߏ ࠔࠌࠓ",
    "नमस्ते दुनिया क्षत्रिय किताब १२३",
    "বাংলা ভাষা ਪੰਜਾਬੀ ગુજરાતી ଓଡ଼ିଆ",
    "தமிழ் மொழி తెలుగు ಕನ್ನಡ മലയാളം සිංහල",
    "ภาษาไทยไม่มีช่องว่าง ๑๒๓ ພາສາລາວ བོད་སྐད་ မြန်မာစာ",
    "საქართველო ᲡᲐᲥ ამბავი ⴀⴁ",
    "አማርኛ ᏣᎳᎩ ꮳꮃꭹ ᐃᓄᒃᑎᑐᑦ ᚠᚢᚦ ᚁᚂ",
    "ភាសាខ្មែរ ᠮᠣᠩᠭᠣᠯ ᨅᨔ ᬩᬮᬶ ꦗꦮ ᮞᮥᮔ᮪ᮓ",
    "中文沒有空格,標點。日本語のテキスト、カタカナ・ひらがな ｶﾀｶﾅ 々〆〇",
    "한국어 텍스트 ㄱㄴㄷ 각 힣 ᅟᅠ",
    "𐌰𐌱𐌲 𐐀𐐨 𐤀𐤁 𒀀𒁀 𓀀𓀁 𞤀𞤢 𑀓𑀲 𝔄𝕬𝟘𝟿 𠀀𪛖𫝀𰀀",
    "ꙮ ꜩ Ꞗ ꟲ Ꭰ ǅ ǈ ʰʱ ͅ ª º ℵ ⅷ Ⅷ ½ ² ① ㊿ 𐒠𑁦",
)
_NEWER = (  # letters, marks and digits by the version of Unicode that brought them: libraries carry tables of different age
    "\u08b6\u1c80\U0001e900\U00011c50",  # 9
    "\u0860\u312e\U00011d00",  # 10
    "\u10d0\u1c90\u0560\U00010d00\U00010d30",  # 11
    "\u0e86\U0001e100\U0001e140",  # 12
    "\u08be\u31bb\U00010e80\U0002a6d7",  # 13
    "\u0870\u1ac1\u1d00\U00010570\U0001df00",  # 14
    "\u0ccd\u0cf3\U00011f00\U0001e4d0\U0001e030\U00031350",  # 15
    "\u2ffc\U0002ebf0",  # 15.1
    "\u1c89\ua7cb\ua7da\U00010d40\U000105c0\U00016d40\U0001e5d0\U00011bf0",  # 16
    "\u088f\u0c5c\u0cdc\ua7ce\ua7d2\ua7f1\u1acf\U00010940\U00011b60\U00016ea0\U00018d80",  # 17
    "\u0378\u05ff\u2e7f\u1fff\U000103ff\U0003fffd",  # none yet
)
_MARKS = (
    "e\u0301", "E\u0301\u0327", "q\u0323\u0307", "\u0307\u0323", "\u0301", " \u0301a", "a\u20dd",
    "\u1112\u1161\u11ab", "A\u030a", "\u212b", "\u2126", "\ufb01n", "\u0958", "\u0344", "\u0390\u03b0", "\u0f73",
    "\U0001d15e",
)  # fmt: skip
_EMOJI = (
    "😀", "👍🏽", "👩\u200d👩\u200d👧\u200d👦", "🏴\U000e0067\U000e0062\U000e007f", "🇩🇪🇫🇷🇩", "❤\ufe0f", "☺",
    "1\ufe0f\u20e3", "🫠🫨🫩", "👨🏿\u200d🚀", "©®™", "→⇒∑∞", "█▓░",
)  # fmt: skip
_SPACES = (
    " ", "  ", "   ", "\n", "\n\n", "\r", "\r\n", "\t", "\v", "\f", "\x1c", "\x1f", "\x85", "\u00a0", "\u1680",
    "\u2003", "\u2028", "\u2029", "\u202f", "\u3000", "\u200b", "\u2060", "\ufeff",
)  # fmt: skip
_CONTROLS = (
    "\x00", "\x00\x00a\x00", "\x01\x02", "\x07", "\x1b[31mred\x1b[0m", "\x7f", "\x80", "\x9f", "\u00ad", "\u200d",
    "\u200e\u200f", "\u202e", "\ufff9", "\ufffc", "\ufffd", "\ufffe", "\uffff", "\ufdd0", "\ue000", "\U000f0000",
    "\U0010ffff",
)  # fmt: skip
_CODE = (
    "def f(x: int) -> str:\n    return f'{x!r}'  # done\n\n\nclass A(B):\n\tpass\n",
    'for (int i = 0; i < n; ++i) {\r\n\t\ta[i] += b->c && !d || ~e; // "x"\r\n}',
    "https://user:pw@example.org:8080/a/b.html?x=1&y=%20#z www.x.y me@x.org C:\\dir\\file.txt ../a/./b",
    '{"key": [1, 2.50, -3e-7, null], "s": "\\u00e9\\n"}',
    "<a href='#'>x &amp; y</a><!-- -->\n```\n| a | b |\n|---|---|\n",
    "snake_case camelCase PascalCase SCREAMING_CASE kebab-case x86_64 utf8 HTTPServer iOS",
    "0 1 12 123 1234 12345678901234567890 3.14159 1,000,000 0x1F 1e10 2024-01-31T23:59:59Z ½ 1/2 50% $5 №7",
    "'tis 'twas rock'n'roll o'clock y'all'd've x's's ''s ' s 'S 'T 'RE 'Ve 'm 'D ’s ‘s’ \u02bcs",
    "...... !!!??? ----- ===== ***** _____ ((())) [[]] {{}} ~~~ ^^^ %%% ### @@@ &&& ///\n/ \n//\n",
    "a\nb\n\nc\n \nd \n e\r\rf\t \tg  \n  h   i    \n\n\n    j     ",
)
_PLAIN = (
    "a", "A", "ab", "Ab", "aB", "1", "1a", "a1", "!", "!a", "a!", " a", "a ", " 1", " !", "! ", "\na", "a\n",
    " \n", "\n ", "_", "_a", "'", "'s", "x's", "-", "é", "中", "а", "ا", "क", "कि", "ि", "각", "𐐀", "ʰ", "ǅ", "º",
    "²", "٣",
)  # fmt: skip
_LEFT = (
    "\u017fo da\u017fs Wa\u017f\u017fer \u017f \u017f's 1\u017f! ’\u017ft ' \u017f \u1e9b'",
    "x\u017f " + " ".join(f"x'\u017f{c}, '\u017f{c}" for c in "abcdefghijklmnopqrstuvwxyzA1é"),
    " ".join(f"{c}\u180e{d}" for c in "(!-1a" for d in "(!-1a"),
)
"""Apart from the others, since a back-end may leave these characters to the reference."""
_LONG = ("a", "ab", "A", "1", "_", " ", "\n", "\t", "é", "中", "😀", "ha ", "=-", "\u0301", "ि", "\x00")


def sample(special: Iterable[str] = ()) -> list[str]:
    """The strings, and `special` ones as literal text in their midst.

    Args:
        special: the contents of tokens that are added to the vocabulary; of many, the first and the last are taken.
    """
    named = list(dict.fromkeys(special))
    few = named if len(named) <= 32 else [*named[:16], *named[-16:]]
    literal = [form.format(text) for text in few for form in ("{0}", "a{0}b", " {0} {0}\n", "{0}{0}'s")]
    cut = [piece for text in few if len(text) > 2 for piece in (text[1:], text[:-1], text[:-1] + " " + text[-1])]
    return [*_fixed(), *literal, *cut, "".join(few)]


@cache
def _fixed() -> Sequence[str]:
    joined = "\n".join(_SCRIPTS)
    newer = [f"a{c}b {c}'s {c}{c} 1{c}!" for text in _NEWER for c in text]
    spaces = [form.format(space) for space in _SPACES for form in ("{0}", "a{0}b", "a{0}{0} b", "1{0}!{0}\n", "{0}a", "a {0}")]
    controls = [form.format(c) for c in _CONTROLS for form in ("{0}", "a{0}b", " {0} ", "x{0}'s")]
    emoji = [form.format(e) for e in _EMOJI for form in ("{0}", "a{0} {0}{0}b", "1{0}\n")]
    pairs = ["".join(pair) for pair in product(_PLAIN[::3], _PLAIN)]
    runs = [text * (120 // len(text)) for text in _LONG]
    words = ["Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft" * 2, "lopado" * 60]
    replaced = b"broken \xff\xfe text \xed\xa0\x80 here".decode("utf-8", "replace")
    everything = "".join([joined, *_SPACES, *_EMOJI, *_CONTROLS, *_CODE, *_MARKS])
    return (
        "", joined, everything, replaced, *_SCRIPTS, *newer, *_MARKS, *("x" + m + "y" for m in _MARKS), *emoji, *spaces, *controls,
        *_CODE, *_PLAIN, *pairs, *runs, *words, *_LEFT,
    )  # fmt: skip
