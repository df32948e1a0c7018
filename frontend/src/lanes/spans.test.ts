import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Finding } from '../api/types.ts';
import { mulberry } from '../math/random.testing.ts';
import { overlaps } from '../math/range.ts';
import { epochRanges, packSpans, place, spanRange } from './spans.ts';

const EXTENT = { start_ns: 1e18, end_ns: 1e18 + 100e9, first_step: 0, last_step: 999 };

test('spans of one row never overlap', () => {
  const random = mulberry(5);
  for (let round = 0; round < 50; round++) {
    const spans: Finding[] = Array.from({ length: 40 }, () => {
      const start = Math.floor(random() * 1000);
      return { cause: 'x', start_step: start, end_step: start + Math.floor(random() * 100), lost_s: random() };
    });
    const boxes = packSpans(spans, 'step', EXTENT, 10);
    assert.equal(boxes.length, 40);
    for (const a of boxes)
      for (const b of boxes)
        if (a !== b && a.row === b.row) assert.ok(!overlaps(a.range, b.range), `${JSON.stringify([a, b])}`);
  }
});

test('what cost most comes first', () => {
  const [first] = packSpans([{ cause: 'a', start_step: 0, end_step: 9, lost_s: 1 }, { cause: 'b', start_step: 0, end_step: 9, lost_s: 5 }], 'step', EXTENT, 0);
  assert.equal(first?.item.cause, 'b');
  assert.equal(first?.row, 0);
});

test('findings without a range are not on the axis', () => {
  assert.equal(spanRange({ cause: 'a' }, 'step', EXTENT), null);
  assert.deepEqual(packSpans([{ cause: 'a' }], 'time', EXTENT, 0), []);
});

test('times are relative to the recording', () => {
  assert.deepEqual(spanRange({ cause: 'a', start_ns: 1e18 + 5e9, end_ns: 1e18 + 6e9 }, 'time', EXTENT), { start: 5e9, end: 6e9 });
});

test('a span of one step can still be seen and clicked', () => {
  const boxes = packSpans([{ cause: 'a', start_step: 500, end_step: 500 }], 'step', EXTENT, 0);
  const [box] = place(boxes, { start: 0, end: 1000 }, 800, 5);
  assert.equal(box?.width, 5);
  assert.equal(place(boxes, { start: 600, end: 1000 }, 800, 5).length, 0);
});

test('an epoch begins where the one before it ended', () => {
  const epochs = [1, 2, 3].map((number) => ({
    kind: 'epoch', name: `epoch ${number}`, start_ns: 1e18 + (number - 1) * 10e9, end_ns: 1e18 + number * 10e9, step: number * 50, account: '', self_ns: 0, count: 1,
  }));
  const shuffled = [epochs[2], epochs[0], epochs[1]].map((epoch) => epoch as (typeof epochs)[number]);
  const seen = (axis: 'step' | 'time') => epochRanges(shuffled, axis, EXTENT).map(({ item, range }) => [item.name, range.start, range.end]);
  assert.deepEqual(seen('step'), [['epoch 1', 0, 50], ['epoch 2', 50, 100], ['epoch 3', 100, 150]]);
  assert.deepEqual(seen('time'), [['epoch 1', 0, 10e9], ['epoch 2', 10e9, 20e9], ['epoch 3', 20e9, 30e9]]);
});
