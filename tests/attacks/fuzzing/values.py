"""Values that parsers tend to mishandle. Everything is drawn from a seeded generator, so a run can be repeated."""

from __future__ import annotations

from random import Random

NUMBERS: tuple[int, ...] = (
    0,
    1,
    2,
    7,
    127,
    128,
    255,
    1000,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**53,
    2**63 - 1,
)

TEXTS = (
    "",
    "orders",
    "persistent://public/default/fuzzed",
    "persistent://public/default/fuzzed-partition-0",
    "persistent://public/default/fuzzed-partition-99999999999999999999",
    "non-persistent://public/default/x",
    "persistent://shop/default/orders",
    "public/default/fuzzed",
    "persistent:///",
    "persistent://a/b/c/d/e",
    "../../../etc/passwd",
    "%2e%2e%2f",
    "x" * 484,
    "x" * 513,
    "é" * 256,
    "\x00",
    "a\x1b[2Jb",
    "line\nline\r\n",
    "\u202egnp.exe",
    "\U0001f980" * 40,
    "٣",
    "9" * 5000,
    "-1",
    "1e309",
    "NaN",
    "null",
    "{}",
    "*",
    "a b",
    "' OR 1=1 --",
    "${jndi:ldap://127.0.0.1/x}",
)

PROPERTIES = (
    "onewriter.queue-priority",
    "onewriter.if-epoch",
    "onewriter.guard",
    "onewriter.guard-epoch",
    "onewriter.guard-number",
    "onewriter.progress",
    "x",
)


def text(random: Random) -> str:
    """A text, mostly a well-known troublemaker."""
    if random.random() < 0.1:
        length = random.choice((1, 20, 300, 4000))
        return "".join(chr(random.choice((65, 0x20, 0x7F, 0xE9, 0x4E2D))) for _ in range(length))
    return random.choice(TEXTS)


def number(random: Random, bits: int = 64) -> int:
    """An integer that fits into this number of bits, mostly at a limit."""
    found: int = random.choice(NUMBERS) if random.random() < 0.8 else random.getrandbits(bits)
    mask: int = 2**bits - 1
    return found & mask


def count(random: Random) -> int:
    """How often something is repeated: mostly once or not at all, sometimes by the thousand."""
    found: int = random.choices((0, 1, 2, 5, 300, 3000), (30, 40, 15, 10, 4, 1))[0]
    return found


def mutated(random: Random, data: bytes, share: float = 0.25) -> bytes:
    """The data as it is, or with bytes changed, cut out, repeated or put in."""
    if not data or random.random() >= share:
        return data
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(found)) if found else 0
        match random.randrange(4):
            case 0 if found:
                found[at] = random.getrandbits(8)
            case 1:
                del found[at : at + random.choice((1, 2, 8))]
            case 2:
                found[at:at] = random.randbytes(random.choice((1, 4, 30)))
            case _:
                found[at:at] = found[at : at + 16]
    return bytes(found)
