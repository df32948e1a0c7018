import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { WordedFinding } from '../api/types.ts';
import { epochRanges, place, spanPieces, spanRange } from './spans.ts';

const EXTENT = { start_ns: 1e18, end_ns: 1e18 + 100e9, first_step: 0, last_step: 999 };

test('times are relative to the recording', () => {
  assert.equal(spanRange({ id: 'a', cause: 'a' } as WordedFinding, 'step', EXTENT), null);
  assert.deepEqual(spanRange({ id: 'a', cause: 'a', start_ns: 1e18 + 5e9, end_ns: 1e18 + 6e9 } as WordedFinding, 'time', EXTENT), { start: 5e9, end: 6e9 });
});

test('a span is drawn where its loss lies', () => {
  const pieces = [10, 60].map((s) => ({ start_step: s * 10, end_step: s * 10 + 5, start_ns: 1e18 + s * 1e9, end_ns: 1e18 + (s + 1) * 1e9 }));
  const stall = { id: 'a', cause: 'a', start_step: 0, end_step: 900, start_ns: 1e18, end_ns: 1e18 + 90e9, pieces };
  assert.deepEqual(spanPieces(stall as WordedFinding, 'time', EXTENT), [{ start: 10e9, end: 11e9 }, { start: 60e9, end: 61e9 }]);
  assert.deepEqual(spanPieces(stall as WordedFinding, 'step', EXTENT).map(({ start }) => start), [100, 600]);
});

test('a span of one step can still be seen and clicked', () => {
  const boxes = [{ range: spanRange({ id: 'a', cause: 'a', start_step: 500, end_step: 500 } as WordedFinding, 'step', EXTENT) as { start: number; end: number } }];
  const [box] = place(boxes, { start: 0, end: 1000 }, 800, 5);
  assert.equal(box?.width, 5);
  assert.equal(place(boxes, { start: 600, end: 1000 }, 800, 5).length, 0);
});

test('an epoch begins where the one before it ended', () => {
  const epochs = [1, 2, 3].map((number) => ({
    kind: 'epoch', name: `epoch ${number}`, start_ns: 1e18 + (number - 1) * 10e9, end_ns: 1e18 + number * 10e9, step: number * 50, account: '', count: 1,
  }));
  const shuffled = [epochs[2], epochs[0], epochs[1]].map((epoch) => epoch as (typeof epochs)[number]);
  const seen = (axis: 'step' | 'time') => epochRanges(shuffled, axis, EXTENT).map(({ item, range }) => [item.name, range.start, range.end]);
  assert.deepEqual(seen('step'), [['epoch 1', 0, 50], ['epoch 2', 50, 100], ['epoch 3', 100, 150]]);
  assert.deepEqual(seen('time'), [['epoch 1', 0, 10e9], ['epoch 2', 10e9, 20e9], ['epoch 3', 20e9, 30e9]]);
});
