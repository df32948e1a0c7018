import assert from 'node:assert/strict';
import { test } from 'node:test';
import { columnsOf, holesOf, isDark, labelsOf, partAt } from './time.ts';
import { Points } from './resample.ts';

const SERIES = ['busy', 'input', 'checkpoint', 'rest'].map((name) => ({ name, title: name === 'input' ? 'waiting for input' : name }));
const NAMES = SERIES.map(({ name }) => name);

/** A point a pixel of `wide` pixels, a second each, with the shares of busy, input, checkpoint and the rest. */
function points(shares: (readonly number[] | null)[], wide = 1): Points {
  const out = new Points();
  out.reset(shares.length, NAMES.length);
  shares.forEach((one, i) => {
    if (!one) return;
    const n = out.n++;
    out.x0[n] = i * wide;
    out.x1[n] = (i + 1) * wide;
    out.time[n] = i * 1e9;
    one.forEach((share, s) => ((out.mean[s] as Float32Array)[n] = share));
  });
  return out;
}

const many = (n: number, shares: readonly number[]): (readonly number[])[] => Array.from({ length: n }, () => shares);
const STARVED = [40, 60, 0, 0];
const SAVING = [0, 0, 100, 0];

test('a hole is as long as its part goes on, and its seconds are the area above the edge', () => {
  const columns = columnsOf(points([...many(50, STARVED), ...many(10, SAVING), ...many(50, STARVED)]), NAMES, 110e9, 1e9);
  const holes = holesOf(columns, SERIES);
  assert.deepEqual(holes.map(({ part, x0, x1, seconds }) => [part, x0, x1, Math.round(seconds)]), [['input', 0, 50, 30], ['input', 60, 110, 30], ['checkpoint', 50, 60, 10]]);
  const [first] = holes;
  assert.ok(first && Math.abs(first.low - 0.4) < 1e-6 && Math.abs(first.high - 1) < 1e-6 && Math.abs(first.x - 25) < 1e-3);
});

test('what was not sampled is in no hole, and joined to nothing', () => {
  const columns = columnsOf(points([...many(20, STARVED), ...Array.from({ length: 30 }, () => null), ...many(20, STARVED)]), NAMES, 70e9, 1e9);
  assert.equal(columns.x1[19], 20, 'a column ends where its bucket does');
  assert.deepEqual(holesOf(columns, SERIES).map(({ x0, x1 }) => [x0, x1]), [[0, 20], [50, 70]]);
  assert.equal(partAt(columns, SERIES, 30, 0.5), null);
});

test('under a pixel is the part whose share reaches there', () => {
  const columns = columnsOf(points(many(10, [40, 30, 0, 30])), NAMES, 10e9, 1e9);
  assert.deepEqual([0.2, 0.5, 0.9].map((share) => partAt(columns, SERIES, 5, share)?.part), ['busy', 'input', 'rest']);
});

test('steps have the seconds of their own times', () => {
  const columns = columnsOf(points(many(4, STARVED)), NAMES, 10e9, 0);
  assert.deepEqual([...columns.seconds], [1, 1, 1, 7]);
});

test('without it the part shrinks, what follows moves up, and the rest keeps its seconds', () => {
  const before = columnsOf(points([...many(50, STARVED), ...many(10, SAVING)]), NAMES, 60e9, 1e9);
  const after = columnsOf(points([...many(50, STARVED), ...many(10, SAVING)]), NAMES, 60e9, 1e9, { part: 'input', share: 1 });
  assert.equal(before.x1[59], 60);
  assert.ok(Math.abs((after.x1[59] as number) - 30) < 1e-3, '30 of 60 seconds are gone');
  const [saving] = holesOf(after, SERIES).filter(({ part }) => part === 'checkpoint');
  assert.ok(saving && Math.abs(saving.seconds - 10) < 0.01 && Math.abs(saving.x0 - 20) < 0.01);
  assert.deepEqual(holesOf(after, SERIES).filter(({ part }) => part === 'input'), []);
});

test('labels lie in their holes and over no other one; a narrow hole has its seconds alone or nothing', () => {
  const columns = columnsOf(points([...many(60, STARVED), ...many(6, SAVING), ...many(20, STARVED)], 2), NAMES, 86e9, 0.5e9);
  const rect = { x: 0, y: 0, width: 172, height: 200 };
  const measure = (text: string): number => 5 * text.length;
  const labels = labelsOf(holesOf(columns, SERIES), rect, { start: 0, end: 86e9 }, measure, ({ seconds }) => `−${Math.round(seconds)} s`);
  assert.deepEqual(labels.map(({ lines }) => lines), [['waiting for input', '−36 s'], ['−12 s']]);
  for (const { hole, x, y, width, height } of labels) assert.ok(x >= hole.x0 && x + width <= hole.x1 && y >= 0 && y + height <= 200);
});

test('text on a part is white where that is easier to read', () => {
  assert.deepEqual(['#3f1f80', '#7d3f6e', '#e69f00', '#c69bb9'].map(isDark), [true, true, false, false]);
});
