"""Values of well-known kinds: what a person would write into an argument named like this.

Finite lists are tuples. The other kinds are made from a seeded generator, `size` values at a time.
"""

from __future__ import annotations

import datetime as dt
import random
import uuid
import zoneinfo
from collections.abc import Callable
from functools import cache

from pydantic import JsonValue


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


_ZONES = _list("""
Africa/Abidjan, Africa/Accra, Africa/Algiers, Africa/Cairo, Africa/Casablanca, Africa/Dakar, Africa/Harare,
Africa/Johannesburg, Africa/Kampala, Africa/Kinshasa, Africa/Lagos, Africa/Luanda, Africa/Lusaka, Africa/Maputo,
Africa/Nairobi, Africa/Tripoli, Africa/Tunis, Africa/Windhoek, America/Anchorage, America/Aruba, America/Belize,
America/Bogota, America/Boise, America/Cancun, America/Caracas, America/Cayenne, America/Chicago, America/Denver,
America/Detroit, America/Edmonton, America/Fortaleza, America/Guatemala, America/Guyana, America/Halifax,
America/Havana, America/Jamaica, America/Juneau, America/Lima, America/Managua, America/Manaus, America/Martinique,
America/Mexico_City, America/Montevideo, America/Nassau, America/New_York, America/Nome, America/Panama,
America/Paramaribo, America/Phoenix, America/Recife, America/Regina, America/Santiago, America/Tijuana,
America/Toronto, America/Vancouver, America/Whitehorse, America/Winnipeg, Asia/Almaty, Asia/Amman, Asia/Baghdad,
Asia/Bahrain, Asia/Baku, Asia/Bangkok, Asia/Beirut, Asia/Brunei, Asia/Colombo, Asia/Damascus, Asia/Dhaka, Asia/Dubai,
Asia/Istanbul, Asia/Jakarta, Asia/Jerusalem, Asia/Kabul, Asia/Karachi, Asia/Kolkata, Asia/Kuwait, Asia/Magadan,
Asia/Manila, Asia/Muscat, Asia/Omsk, Asia/Qatar, Asia/Riyadh, Asia/Seoul, Asia/Shanghai, Asia/Singapore, Asia/Taipei,
Asia/Tehran, Asia/Tokyo, Asia/Yerevan, Atlantic/Azores, Atlantic/Bermuda, Atlantic/Canary, Atlantic/Faroe,
Atlantic/Madeira, Atlantic/Stanley, Australia/Adelaide, Australia/Brisbane, Australia/Darwin, Australia/Hobart,
Australia/Melbourne, Australia/Perth, Australia/Sydney, Europe/Amsterdam, Europe/Andorra, Europe/Athens,
Europe/Belgrade, Europe/Berlin, Europe/Brussels, Europe/Bucharest, Europe/Budapest, Europe/Copenhagen, Europe/Dublin,
Europe/Gibraltar, Europe/Helsinki, Europe/Lisbon, Europe/London, Europe/Luxembourg, Europe/Madrid, Europe/Malta,
Europe/Minsk, Europe/Monaco, Europe/Moscow, Europe/Oslo, Europe/Paris, Europe/Prague, Europe/Riga, Europe/Rome,
Europe/Samara, Europe/Sofia, Europe/Stockholm, Europe/Tallinn, Europe/Vienna, Europe/Warsaw, Europe/Zagreb,
Europe/Zurich, Pacific/Apia, Pacific/Auckland, Pacific/Easter, Pacific/Fiji, Pacific/Galapagos, Pacific/Guam,
Pacific/Honolulu, Pacific/Palau
""")
CITIES = _list("""
Amsterdam, Athens, Auckland, Bangkok, Barcelona, Beijing, Berlin, Bogota, Boston, Brussels, Budapest, Cairo, Chicago,
Copenhagen, Dallas, Delhi, Denver, Dubai, Dublin, Geneva, Hamburg, Hanoi, Helsinki, Houston, Istanbul, Jakarta, Kyoto,
Lagos, Lima, Lisbon, London, Madrid, Manila, Melbourne, Miami, Milan, Montreal, Moscow, Mumbai, Munich, Nairobi,
Naples, Osaka, Oslo, Paris, Perth, Prague, Riga, Rome, Santiago, Seattle, Seoul, Shanghai, Singapore, Sofia,
Stockholm, Sydney, Taipei, Tokyo, Toronto, Vancouver, Venice, Vienna, Warsaw, Zurich
""")
COUNTRIES = _list("""
Argentina, Australia, Austria, Belgium, Brazil, Canada, Chile, China, Colombia, Denmark, Egypt, Finland, France,
Germany, Greece, Hungary, Iceland, India, Indonesia, Ireland, Israel, Italy, Japan, Kenya, Malaysia, Mexico, Morocco,
Nepal, Netherlands, Nigeria, Norway, Peru, Poland, Portugal, Romania, Spain, Sweden, Switzerland, Thailand, Turkey,
Vietnam
""")
COUNTRY_CODES = _list("""
AR, AU, AT, BE, BR, CA, CL, CN, CO, DK, EG, FI, FR, DE, GR, HU, IS, IN, ID, IE, IL, IT, JP, KE, MY, MX, MA, NL, NO,
PE, PL, PT, RO, ES, SE, CH, TH, TR
""")
LANGUAGES = _list("""
Arabic, Bengali, Chinese, Czech, Danish, Dutch, English, Finnish, French, German, Greek, Hebrew, Hindi, Hungarian,
Italian, Japanese, Korean, Norwegian, Polish, Portuguese, Romanian, Russian, Spanish, Swedish, Thai, Turkish,
Ukrainian, Vietnamese
""")
LANGUAGE_CODES = _list("""
ar, bn, cs, da, de, el, en, es, fi, fr, he, hi, hu, id, it, ja, ko, nl, no, pl, pt, ro, ru, sv, th, tr, uk, vi, zh
""")
CURRENCIES = _list("""
AUD, BRL, CAD, CHF, CNY, CZK, DKK, EUR, GBP, HKD, HUF, IDR, ILS, INR, JPY, KRW, MXN, MYR, NOK, NZD, PHP, PLN, SEK,
SGD, THB, TRY, USD, ZAR
""")
UNITS = _list("""
meter, kilometer, centimeter, millimeter, mile, foot, inch, yard, gram, kilogram, pound, ounce, ton, liter,
milliliter, gallon, celsius, fahrenheit, kelvin, second, minute, hour, day
""")
COLOURS = _list("""
black, blue, brown, cyan, gold, gray, green, indigo, lime, magenta, maroon, navy, olive, orange, pink, purple, red,
silver, teal, violet, white, yellow
""")
SIZES = ("small", "medium", "large", "tiny", "huge", "extra large")
PEOPLE = _list("""
Alice, Bob, Carla, David, Elena, Felix, Grace, Henry, Irene, Jonas, Karen, Louis, Maria, Nadia, Oscar, Paula, Quentin,
Rosa, Samuel, Teresa, Victor, Wendy, Yusuf, Zoe
""")
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = _list("""
January, February, March, April, May, June, July, August, September, October, November, December
""")
WORDS = _list("""
apple, bread, bridge, camera, candle, castle, cloud, coffee, copper, cotton, desert, dragon, eagle, engine, feather,
forest, garden, glass, guitar, hammer, harbor, island, jacket, kettle, ladder, lemon, library, magnet, market, meadow,
mirror, mountain, needle, ocean, orange, paper, pencil, pepper, piano, planet, pocket, rabbit, river, rocket, saddle,
school, shadow, silver, spider, spring, stone, summer, table, temple, thunder, ticket, tiger, tunnel, valley, velvet,
village, violin, wagon, water, window, winter, wolf, yellow
""")
_NOUNS = WORDS[:36]
_VERBS = ("moves", "falls", "shines", "waits", "sleeps", "opens", "turns", "stands")
_DOMAINS = ("example.com", "example.org", "example.net")


@cache
def time_zones() -> tuple[str, ...]:
    """Well-known zones, `Region/City`, that this machine's time zone data has too."""
    known = zoneinfo.available_timezones()
    return tuple(name for name in _ZONES if name in known)


def make_clock_times(rng: random.Random, size: int) -> list[JsonValue]:
    """`HH:MM`, on multiples of five minutes."""
    every = [f"{hour:02d}:{minute:02d}" for hour in range(24) for minute in range(0, 60, 5)]
    return list(rng.sample(every, min(size, len(every))))


def make_dates(rng: random.Random, size: int) -> list[JsonValue]:
    """`YYYY-MM-DD` within 2020 to 2029."""
    return [(dt.date(2020, 1, 1) + dt.timedelta(days)).isoformat() for days in rng.sample(range(3650), min(size, 3650))]


def make_datetimes(rng: random.Random, size: int) -> list[JsonValue]:
    """`YYYY-MM-DDTHH:MM:00Z`."""
    times = make_clock_times(rng, size)
    return [f"{day}T{time}:00Z" for day, time in zip(make_dates(rng, len(times)), times, strict=True)]


def make_emails(rng: random.Random, size: int) -> list[JsonValue]:
    """Addresses in domains that are reserved for examples."""
    every = [f"{name.lower()}@{domain}" for name in PEOPLE for domain in _DOMAINS]
    return list(rng.sample(every, min(size, len(every))))


def make_urls(rng: random.Random, size: int) -> list[JsonValue]:
    """Pages in domains that are reserved for examples."""
    every = [f"https://{domain}/{word}" for domain in _DOMAINS for word in WORDS]
    return ["https://example.com", "https://example.org", *rng.sample(every, min(max(size - 2, 0), len(every)))]


def make_uuids(rng: random.Random, size: int) -> list[JsonValue]:
    return [str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(size)]


def make_ip_addresses(rng: random.Random, size: int) -> list[JsonValue]:
    """Addresses in the ranges that are reserved for documentation."""
    return list(rng.sample([f"{net}.{host}" for net in ("192.0.2", "198.51.100") for host in range(1, 255)], size))


def make_sentences(rng: random.Random, size: int) -> list[JsonValue]:
    every = [f"the {noun} {verb} near the {other}" for noun in _NOUNS for verb in _VERBS for other in _NOUNS[:6]]
    return list(rng.sample(every, min(size, len(every))))


def make_queries(rng: random.Random, size: int) -> list[JsonValue]:
    """Plain words to search for or to work on."""
    return list(rng.sample(WORDS, min(size, len(WORDS))))


_FINITE: dict[str, tuple[str, ...]] = {
    "city": CITIES,
    "country": COUNTRIES,
    "country_code": COUNTRY_CODES,
    "language": LANGUAGES,
    "language_code": LANGUAGE_CODES,
    "currency": CURRENCIES,
    "unit": UNITS,
    "colour": COLOURS,
    "size": SIZES,
    "person": PEOPLE,
    "weekday": WEEKDAYS,
    "month": MONTHS,
}
_MADE: dict[str, Callable[[random.Random, int], list[JsonValue]]] = {
    "clock_time": make_clock_times,
    "date": make_dates,
    "datetime": make_datetimes,
    "email": make_emails,
    "url": make_urls,
    "uuid": make_uuids,
    "ip_address": make_ip_addresses,
    "text": make_sentences,
    "word": make_queries,
}
TEXT_KINDS = frozenset(_FINITE) | frozenset(_MADE) | {"time_zone", "expression", "file", "folder"}


def make_values(kind: str, rng: random.Random, size: int) -> list[JsonValue]:
    """Up to `size` different values of a textual kind; nothing for kinds that need a folder or a split."""
    if kind == "time_zone":
        return list(rng.sample(time_zones(), len(time_zones())))
    if kind in _FINITE:
        return list(rng.sample(_FINITE[kind], len(_FINITE[kind])))
    return _MADE[kind](rng, size) if kind in _MADE else []


def make_expression(rng: random.Random, operands: list[int]) -> str:
    """An arithmetic expression over `operands` whose value has few digits.

    Two or three operands, `+ - * /`, parentheses, now and then a decimal; every division comes out even.
    """

    def pick(limit: int = 100) -> int:
        return rng.choice([operand for operand in operands if operand < limit] or operands)

    a, b, c = pick(), pick(), pick()
    high, low = max(a, b), min(a, b)
    small = pick(13)
    exact = small * pick(30)
    return rng.choice(
        (
            f"{a}+{b}",
            f"{high}-{low}",
            f"{a}*{small}",
            f"{exact}/{small}",
            f"{a}.5+{b}",
            f"{a}+{b}+{c}",
            f"{a}-{b}+{c}",
            f"{a}+{b}*{small}",
            f"{a}*{small}-{b}",
            f"{exact}/{small}+{c}",
            f"({a}+{b})*{small}",
            f"({high}-{low})*{small}",
        )
    )
