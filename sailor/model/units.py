"""Units: SI base numbers inside, strings with units only where people type.

"GB" is 1e9 bytes, "GiB" is 2**30 bytes, "Gbit/s" is 1e9/8 bytes a second. A bare number is
already in the base unit that the field's name says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field

_NUMBER = re.compile(r"^\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(.*?)\s*$")

_BYTES: Mapping[str, float] = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_RATES: Mapping[str, float] = {
    **{
        f"{prefix}bit/s": scale / 8
        for prefix, scale in {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.items()
    },
    **{f"{unit}/s": float(scale) for unit, scale in _BYTES.items()},
}
_SECONDS: Mapping[str, float] = {
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_FLOPS: Mapping[str, float] = {"FLOP/s": 1.0, "GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15}
_USD: Mapping[str, float] = {"USD": 1.0}
_USD_PER_HOUR: Mapping[str, float] = {"USD/h": 1.0}
_USD_PER_BYTE: Mapping[str, float] = {"USD/GB": 1e-9, "USD/GiB": 2.0**-30}


def _parser(table: Mapping[str, float], example: str) -> BeforeValidator:
    def parse(value: object) -> object:
        if isinstance(value, bool):
            raise ValueError(f"expected a quantity like {example!r}, not {value!r}")
        if not isinstance(value, str):
            return value
        match = _NUMBER.match(value)
        if match is None:
            raise ValueError(f"{value!r} is not a quantity; write it like {example!r}")
        if match[2] not in table:
            unit = f"the unit {match[2]!r}" if match[2] else "no unit"
            raise ValueError(
                f"{value!r} has {unit}, which this field doesn't know; write it like {example!r}"
                f" (units: {', '.join(table)})"
            )
        number = float(match[1]) * table[match[2]]
        if not math.isfinite(number):
            raise ValueError(f"{value!r} is not a finite quantity; write it like {example!r}")
        return int(number) if number.is_integer() and table is _BYTES else number

    return BeforeValidator(parse)


Bytes = Annotated[int, _parser(_BYTES, "40 GiB"), Field(ge=0)]
PositiveBytes = Annotated[int, _parser(_BYTES, "40 GiB"), Field(gt=0)]
Seconds = Annotated[float, _parser(_SECONDS, "20 us"), Field(ge=0)]
BytesPerSecond = Annotated[float, _parser(_RATES, "100 Gbit/s"), Field(gt=0)]
FlopPerSecond = Annotated[float, _parser(_FLOPS, "312 TFLOP/s"), Field(gt=0)]
Usd = Annotated[float, _parser(_USD, "12 USD"), Field(gt=0)]
UsdPerHour = Annotated[float, _parser(_USD_PER_HOUR, "3.67 USD/h"), Field(gt=0)]
UsdPerByte = Annotated[float, _parser(_USD_PER_BYTE, "0.02 USD/GB"), Field(ge=0)]
