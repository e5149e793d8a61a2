// Numbers as texts, rounded as Python rounds them, so that the terminal and the report say the same; and a chart's axis.
"use strict";

/** `value` to so many significant digits. A tie goes to the even digit, where toPrecision takes the larger one. */
function rounded(value, digits) {
  const [mantissa, exponent] = Math.abs(value).toExponential(60).split("e");
  const figures = mantissa.replace(".", "");
  if (!/^50*$/.test(figures.slice(digits)) || Number(figures[digits - 1]) % 2) return Number(value.toPrecision(digits));
  return Math.sign(value) * Number(`${figures.slice(0, digits)}e${Number(exponent) - digits + 1}`);
}

function number(value, digits = 4) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value), few = Math.max(3, digits - 1);
  return size >= 1e5 || size < 1e-3 ? rounded(value, few).toExponential(few - 1) : String(rounded(value, digits));
}

/** With one decimal; of the ties, which are .25 and .75 alone, toFixed takes .25 up. */
function percent(value) {
  if (value === null || value === undefined) return "–";
  const whole = 100 * value;
  return `${(Math.abs(whole) % 1 === 0.25 ? whole - 0.01 * Math.sign(whole) : whole).toFixed(1)} %`;
}

/** The ends of a vertical axis: a little room around the values. One of nearly equal values spans `least`, or a
 *  thousandth of their size, lest the last digits of floating-point numbers fill it. */
function span(low, high, least = 0) {
  if (low === null || high === null) return [0, 1];
  const size = Math.max(Math.abs(low), Math.abs(high)), middle = (low + high) / 2;
  const half = high > low ? Math.max(0.56 * (high - low), least / 2, size / 2000) : least / 2 || Math.max(size / 10, 0.5);
  return [low >= 0 ? Math.max(0, middle - half) : middle - half, middle + half];
}

/** The ticks of an axis, with as many digits as tell them apart. */
function labels(ticks) {
  for (let digits = 3; ; digits++) {
    const found = ticks.map(tick => number(tick, digits));
    if (digits > 12 || new Set(found).size === new Set(ticks).size) return found;
  }
}
