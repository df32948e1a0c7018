import assert from 'node:assert/strict';
import { test } from 'node:test';
import { between, bytes, clock, clockTick, count, duration, elapsed, energy, gain, ordinal, percent, scaleOf, seconds, share, short, times, UNKNOWN, withUnit } from './format.ts';

test('what is unknown is never shown as zero', () => {
  for (const format of [count, short, seconds, bytes, percent]) {
    assert.equal(format(null), UNKNOWN);
    assert.equal(format(undefined), UNKNOWN);
    assert.equal(format(NaN), UNKNOWN);
    assert.equal(format(Infinity), UNKNOWN);
  }
  assert.equal(share(1, 0), UNKNOWN);
});

test('a gain is a range, or nothing where it is little', () => {
  assert.equal(gain(10, [3.25, 6.3]), '1.5 to 2.7×');
  assert.equal(gain(10, [0, 6.3]), 'up to 2.7×');
  assert.equal(gain(10, [8, null]), 'at least 5×');
  assert.deepEqual([gain(10, [0, 0.2]), gain(10, [0, null]), gain(null, [1, 2]), gain(10, null)], ['', '', '', '']);
});

test('ordinals', () => {
  assert.deepEqual([1, 2, 3, 4, 11, 12, 13, 21, 102, 1011].map(ordinal), ['1st', '2nd', '3rd', '4th', '11th', '12th', '13th', '21st', '102nd', '1,011th']);
});

test('counts are grouped alike in every locale', () => {
  assert.equal(count(6400), '6,400');
  assert.equal(count(1234567), '1,234,567');
  assert.equal(count(-1234.5), '-1,234.5');
  assert.equal(count(999), '999');
});

test('seconds choose the unit that fits', () => {
  const cases: [number, string][] = [
    [0, '0 s'], [4.2e-9, '4.2 ns'], [52e-6, '52 µs'], [0.0042, '4.2 ms'], [0.104, '104 ms'], [1.234, '1.23 s'],
    [59.9, '59.9 s'], [60, '60 s'], [81.4, '81 s'], [99.6, '1 m 40 s'], [340.2, '5 m 40 s'], [3600, '1 h 00 m'], [7290, '2 h 02 m'],
    [86400 * 3, '3 d 00 h'], [-2, '−2 s'],
  ];
  for (const [value, text] of cases) assert.equal(seconds(value), text);
});

test('what was lost is said in the figures of the verdict', () => {
  const cases: [number | null, string][] = [[0.0042, '4.2 ms'], [0.104, '104 ms'], [3.24, '3.2 s'], [9.96, '10 s'], [30.614, '31 s'], [99.6, '1 m 40 s'], [3659, '1 h 00 m'], [180_300, '50 h 05 m'], [null, '–']];
  for (const [value, text] of cases) assert.equal(duration(value), text);
});

test('rounding never shows 60 minutes or 1000 of a smaller unit', () => {
  for (let exponent = -9; exponent < 6; exponent += 0.001) {
    const text = seconds(10 ** exponent);
    assert.ok(!/(^| )60 m\b| 60 s/.test(text) && !/^1000 /.test(text), `${10 ** exponent}: ${text}`);
  }
});

test('elapsed time has the decimals the zoom needs', () => {
  assert.equal(elapsed(303e9), '5:03');
  assert.equal(elapsed(3903e9), '1:05:03');
  assert.equal(elapsed(95.84e9, 1e7), '1:35.84');
  assert.equal(elapsed(59.9999e9, 1e9), '1:00');
});

test('the clock shows seconds only where they tell ticks apart', () => {
  const noon = new Date(2026, 0, 5, 12, 30, 15, 250).getTime() * 1e6;
  assert.equal(clock(noon, 60e9), '12:30');
  assert.equal(clock(noon, 1e9), '12:30:15');
  assert.match(clock(noon, 1e8), /^12:30:15\.[23]$/);
  assert.equal(clock(noon, 86400e9), '2026-01-05');
});

test('bytes share the unit of what they are part of', () => {
  assert.equal(bytes(34.1 * 2 ** 30), '34.1 GiB');
  assert.equal(bytes(512 * 2 ** 20, 140 * 2 ** 30), '0.5 GiB');
  assert.equal(bytes(0), '0 B');
});

test('lanes carry their units', () => {
  assert.equal(withUnit(12, '%'), '12 %');
  assert.equal(withUnit(2.34, '%'), '2.3 %');
  assert.equal(withUnit(104.2, 'ms'), '104 ms');
  assert.equal(withUnit(348000, 'mW'), '348 W');
  assert.equal(withUnit(1980, 'MHz'), '1,980 MHz');
  assert.equal(withUnit(2 ** 30, 'bytes/s'), '1 GiB/s');
});

test('values of one scale share its unit', () => {
  const vram = scaleOf(80 * 2 ** 30, 'bytes');
  assert.deepEqual([vram.number(80 * 2 ** 30), vram.number(512 * 2 ** 20), vram.unit], ['80', '0.5', 'GiB']);
  const step = scaleOf(200, 'ms');
  assert.deepEqual([step.number(200), step.number(0.0396), step.unit], ['200', '0.0396', 'ms']);
  assert.equal(scaleOf(2500, 'ms').unit, 's');
  assert.equal(scaleOf(0.2, 'ms').unit, 'µs');
  assert.deepEqual([scaleOf(100, '%').number(59.4), scaleOf(100, '%').unit], ['59', '%']);
  assert.deepEqual([scaleOf(700e3, 'mW').number(413e3), scaleOf(700e3, 'mW').unit], ['413', 'W']);
  assert.equal(scaleOf(1500, 'MHz').unit, 'MHz');
  assert.equal(step.number(null), UNKNOWN);
});

test('an upper bound has two digits', () => {
  assert.deepEqual([1.94, 3.97, 9.96, 123.4, null].map(times), ['1.9×', '4×', '10×', '120×', '–']);
});

test("the clock's axis names the day where it begins", () => {
  const midnight = new Date(2026, 10, 22).getTime() * 1e6;
  assert.equal(clockTick(midnight, 6 * 3600e9), '2026-11-22');
  assert.equal(clockTick(midnight + 6 * 3600e9, 6 * 3600e9), '06:00');
  assert.equal(clockTick(midnight, 20e9), '00:00:00', 'of seconds the day is clear');
});

test('an energy is in the unit that a bill has', () => {
  assert.equal(energy(7.56e6), '2.1 kWh');
  assert.equal(energy(820), '0.228 Wh');
  assert.equal(energy(300), '300 J');
});

test('a range of one printed value is that value', () => {
  assert.deepEqual([between('5 ms', '5 ms', ' – '), between('5 ms', '8 ms', ' – '), between('40', '60', '–')], ['5 ms', '5 ms – 8 ms', '40–60']);
});
