"""Arithmetic on untrusted text: exact where it can be, bounded always.

Invariant: for any string whatever `calculate` returns or raises CalculationError, in milliseconds. Nothing
is executed: the text is parsed, and only the nodes named in this module have a meaning. Values are fractions
of at most MAX_DIGITS digits; a root or a fractional power without an exact value is rounded to 30 digits.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable
from decimal import Context, Decimal, InvalidOperation, Overflow, Underflow
from fractions import Fraction

MAX_CHARACTERS = 500
MAX_DEPTH = 50
MAX_DIGITS = 300
INEXACT_DIGITS = 30
SHOWN_DIGITS = 15


class CalculationError(ValueError):
    """An expression has no value here. Its text is a sentence for whoever wrote the expression."""


def calculate(expression: str) -> str:
    """The value of `expression` as text: whole numbers exactly, others with up to 15 significant digits.

    Raises CalculationError for anything else than bounded arithmetic.
    """
    if len(expression) > MAX_CHARACTERS:
        raise CalculationError(
            f"the expression has {len(expression)} characters, and at most {MAX_CHARACTERS} are read"
        )
    return _shown(_value(_parse(expression).body, depth=0))


def _parse(expression: str) -> ast.Expression:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the parser, about text that is refused anyway
            return ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CalculationError("this is not one arithmetic expression") from error


def _value(node: ast.expr, depth: int) -> Fraction:
    if depth > MAX_DEPTH:
        raise CalculationError(f"the expression is nested more than {MAX_DEPTH} deep")
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            value = _literal(number)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            value = _value(operand, depth + 1)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = -_value(operand, depth + 1)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            value = _OPERATORS[type(op)](_value(left, depth + 1), _value(right, depth + 1))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            value = _call(name, [_value(arg, depth + 1) for arg in args])
        case _:
            raise CalculationError(_why_not(node))
    return _bounded(value)


def _literal(number: int | float) -> Fraction:
    if isinstance(number, float) and not math.isfinite(number):
        raise CalculationError(_TOO_LARGE)
    return Fraction(repr(number))  # by its digits: 0.1 is a tenth


def _divide(
    operation: Callable[[Fraction, Fraction], Fraction | int],
) -> Callable[[Fraction, Fraction], Fraction]:
    def divide(left: Fraction, right: Fraction) -> Fraction:
        if right == 0:
            raise CalculationError("it divides by zero")
        return Fraction(operation(left, right))

    return divide


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if base == 0 and exponent < 0:
        raise CalculationError("it divides by zero")
    if exponent.denominator != 1:
        if base < 0:
            raise CalculationError("a negative number has no real fractional power")
        return _inexact(lambda context: context.power(*_decimals(context, base, exponent)))
    if base in (-1, 1):
        return base if exponent % 2 else Fraction(1)
    growth = math.log10(max(abs(base.numerator), base.denominator))
    if growth * abs(exponent) > MAX_DIGITS:
        raise CalculationError(_TOO_LARGE)
    return Fraction(base ** int(exponent))


def _sqrt(number: Fraction) -> Fraction:
    if number < 0:
        raise CalculationError("a negative number has no real square root")
    exact = Fraction(math.isqrt(number.numerator), math.isqrt(number.denominator))
    if exact**2 == number:
        return exact
    return _inexact(lambda context: context.sqrt(*_decimals(context, number)))


def _round(number: Fraction, places: Fraction = Fraction(0)) -> Fraction:
    if places.denominator != 1 or abs(places) > MAX_DIGITS:
        raise CalculationError(f"round takes a whole number of places, at most {MAX_DIGITS}")
    return Fraction(round(number, int(places)))


def _call(name: str, arguments: list[Fraction]) -> Fraction:
    function, fewest, most = _FUNCTIONS[name]
    if not fewest <= len(arguments) <= most:
        raise CalculationError(f"{name} does not take {len(arguments)} arguments")
    return Fraction(function(*arguments))


def _inexact(operation: Callable[[Context], Decimal]) -> Fraction:
    traps = [InvalidOperation, Overflow, Underflow]
    try:
        result = operation(Context(prec=INEXACT_DIGITS, traps=traps))
    except (InvalidOperation, Overflow, Underflow) as error:
        raise CalculationError(_TOO_LARGE) from error
    if result != 0 and abs(result.adjusted()) > MAX_DIGITS:
        raise CalculationError(_TOO_LARGE)
    return Fraction(result)


def _decimals(context: Context, *numbers: Fraction) -> list[Decimal]:
    return [context.divide(Decimal(number.numerator), Decimal(number.denominator)) for number in numbers]


def _bounded(number: Fraction) -> Fraction:
    if max(abs(number.numerator), number.denominator) >= 10**MAX_DIGITS:
        raise CalculationError(_TOO_LARGE)
    return number


def _shown(number: Fraction) -> str:
    if number.denominator == 1:
        return str(number.numerator)
    context = Context(prec=SHOWN_DIGITS)
    decimal = context.divide(Decimal(number.numerator), Decimal(number.denominator)).normalize(context)
    return f"{decimal:f}" if -SHOWN_DIGITS < decimal.adjusted() < SHOWN_DIGITS else str(decimal)


def _why_not(node: ast.expr) -> str:
    match node:
        case ast.BinOp(op=ast.BitXor()):
            return "write ** for a power, not ^"
        case ast.Tuple():
            return "write one number without commas, as 1000 and not 1,000"
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
            return f"{name!r} has no meaning here; the functions are {', '.join(_FUNCTIONS)}"
    return f"only numbers, + - * / // % **, parentheses and the functions {', '.join(_FUNCTIONS)} are known"


_TOO_LARGE = f"a value in it has more than {MAX_DIGITS} digits"

_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide(operator.truediv),
    ast.FloorDiv: _divide(operator.floordiv),
    ast.Mod: _divide(operator.mod),
    ast.Pow: _power,
}

_FUNCTIONS: dict[str, tuple[Callable[..., Fraction], int, int]] = {
    "sqrt": (_sqrt, 1, 1),
    "abs": (abs, 1, 1),
    "round": (_round, 1, 2),
    "min": (min, 1, MAX_CHARACTERS),
    "max": (max, 1, MAX_CHARACTERS),
}
