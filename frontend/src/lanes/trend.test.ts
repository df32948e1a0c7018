import assert from 'node:assert/strict';
import test from 'node:test';
import type { LaneInfo } from '../api/types.ts';
import { trendLine } from './trend.ts';

const lane: LaneInfo = {
  id: 'host:process_held_bytes', group: 'host', title: 'Host memory', unit: 'bytes', kind: 'band', series: [{ name: 'process_held_bytes', title: '' }],
  trend: { start_ns: 1_000, end_ns: 3_000, start_step: 10, end_step: 50, start_value: 25, end_value: 100, title: 'full at step 50' },
};
const rect = { x: 0, y: 10, width: 100, height: 40 };

test('a projection goes from where growth began to where it meets the limit, on both axes', () => {
  assert.deepEqual(trendLine(lane, 'time', 500, { start: 0, end: 1_000 }, rect, 100), { x0: 50, y0: 40, x1: 250, y1: 10 });
  assert.deepEqual(trendLine(lane, 'step', 500, { start: 0, end: 100 }, rect, 100), { x0: 10, y0: 40, x1: 50, y1: 10 });
});

test('it is not drawn outside of the view, nor without one', () => {
  assert.equal(trendLine(lane, 'step', 0, { start: 60, end: 100 }, rect, 100), null);
  assert.equal(trendLine({ ...lane, trend: null }, 'step', 0, { start: 0, end: 100 }, rect, 100), null);
});
