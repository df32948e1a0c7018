import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { LaneInfo, RecordingReply } from '../api/types.ts';
import { TileStore } from '../tiles/store.ts';
import { answer } from '../tiles/testing.ts';
import { otherAxisValue } from './frame.ts';
import { reachOf, readLane, valueAt, valueOver } from './readout.ts';

const lane = (id: string, group: string): LaneInfo => ({ id, group, title: id, unit: 'ms', kind: 'band', series: [{ name: id, title: id }] });

async function filled(sample: Parameters<typeof answer>[1], across: (at: number) => number, axis: 'step' | 'time' = 'step', level = 0): Promise<TileStore> {
  const tiles = new TileStore('id', (request) => Promise.resolve(answer(request, sample, across)), () => {});
  tiles.want([{ axis, level, range: { start: 0, end: 2000 * 2 ** level }, lanes: ['a'] }]);
  await new Promise((resolve) => setTimeout(resolve, 5));
  return tiles;
}

test('the value under the cursor is that of its bucket, or the last one before it', async () => {
  const tiles = await filled((_, bucket) => (bucket % 10 === 0 ? [bucket, bucket + 2, bucket + 1] : null), (at) => at);
  assert.deepEqual(valueAt(tiles, 'step', 0, 'a', 'a', 50.5, 20), { min: 50, max: 52, mean: 51 });
  assert.equal(valueAt(tiles, 'step', 0, 'a', 'a', 57, 20)?.mean, 51);
  assert.equal(valueAt(tiles, 'step', 0, 'a', 'a', 57, 3), null, 'too long ago');
  assert.equal(valueAt(tiles, 'step', 0, 'a', 'b', 57, 20), null);
});

test('a value holds as long as its line is drawn, however short the steps are', () => {
  const recording = { report: { step_ms: { mean: 4 } } } as RecordingReply;
  assert.equal(reachOf({ axis: 'step', level: 0 }, recording), 500, 'two seconds of steps');
  assert.equal(reachOf({ axis: 'step', level: 0 }, recording, 20e9), 5000, 'a sample every five seconds');
  assert.equal(reachOf({ axis: 'time', level: 20 }, recording), 2e9);
  assert.equal(reachOf({ axis: 'time', level: 32 }, recording), 4 * 2 ** 32, 'a few buckets of a whole day');
});

test('a value of this tile is read where the tile before it is not there', async () => {
  const tiles = new TileStore('id', (request) => Promise.resolve(answer(request, (_, bucket) => [bucket, bucket, bucket], (at) => at)), () => {});
  tiles.want([{ axis: 'step', level: 0, range: { start: 512, end: 1024 }, lanes: ['a'] }, { axis: 'step', level: 3, range: { start: 0, end: 4096 }, lanes: ['a'] }]);
  await new Promise((resolve) => setTimeout(resolve, 5));
  assert.equal(valueAt(tiles, 'step', 0, 'a', 'a', 515.5, 20)?.mean, 515);
});

test('a range weighs the buckets at its edges by their share', async () => {
  const tiles = await filled((_, bucket) => [bucket, bucket, bucket], (at) => at, 'step', 2);
  const value = valueOver(tiles, 'step', 2, lane('a', 'training'), 'a', { start: 2, end: 8 });
  // Half of bucket 0 (value 0) and all of bucket 1 (value 1).
  assert.ok(value && Math.abs(value.mean - (0 * 0.5 + 1 * 1) / 1.5) < 1e-9);
  assert.equal(value?.buckets, 2);
});

test('a mean does not depend on the axis or on the zoom', async () => {
  // Steps of 10 ms at 90 %, then as many of 40 ms at 10 %; a sample every 20 ms.
  const timeOf = (step: number): number => (step < 500 ? step * 10e6 : 5e9 + (step - 500) * 40e6);
  const stepOf = (ns: number): number => (ns < 5e9 ? Math.floor(ns / 10e6) : 500 + Math.floor((ns - 5e9) / 40e6));
  const sampled = lane('a', 'gpu0');
  const fine = await filled((_, step) => (step < 500 ? (step % 2 ? null : [90, 90, 90]) : [10, 10, 10]), timeOf);
  const coarse = await filled((_, bucket) => (bucket * 4 < 500 ? [90, 90, 90] : [10, 10, 10]), timeOf, 'step', 2);
  const whole = { start: 0, end: 1000 };
  const truth = (90 * 5 + 10 * 20) / 25;
  for (const [tiles, level] of [[fine, 0], [coarse, 2]] as const) {
    const value = valueOver(tiles, 'step', level, sampled, 'a', whole);
    assert.ok(value && Math.abs(value.mean - truth) < 0.5, `${value?.mean} at level ${level}`);
  }
  // The mean step on the time axis: by steps, not by the time they took.
  const level = 24;
  const byTime = await filled(
    (_, bucket) => (bucket * 2 ** level >= 25e9 ? null : bucket * 2 ** level < 5e9 ? [10, 10, 10] : [40, 40, 40]), stepOf, 'time', level,
  );
  const step = valueOver(byTime, 'time', level, lane('a', 'training'), 'a', { start: 0, end: 25e9 });
  assert.ok(step && Math.abs(step.mean - 25) < 0.5, `${step?.mean}`);
});

test('the first step counts in a mean over the time axis, as long as it was compiled', async () => {
  // A tenth of a second of set-up, a step of 900 ms, nine of 100 ms; none is under way before the first.
  const level = 24;
  const startOf = (step: number): number => (step === 0 ? 0.1e9 : 1e9 + (step - 1) * 0.1e9);
  const stepOf = (ns: number): number => Math.min(9, Math.max(0, Math.floor((ns - 1e9) / 0.1e9) + 1));
  const tiles = await filled(
    (_, bucket) => {
      const step = Array.from({ length: 10 }, (_unused, i) => i).find((i) => Math.floor(startOf(i) / 2 ** level) === bucket);
      return step === undefined ? null : step === 0 ? [900, 900, 900] : [100, 100, 100];
    },
    stepOf, 'time', level,
  );
  const mean = valueOver(tiles, 'time', level, lane('a', 'training'), 'a', { start: 0, end: 1.9e9 })?.mean ?? NaN;
  assert.ok(Math.abs(mean - 180) < 10, String(mean));
});

test('steps and times translate into each other between buckets', async () => {
  const bySteps = await filled(() => [1, 1, 1], (step) => step * 100e6);
  assert.equal(otherAxisValue(bySteps, 'step', 0, 10), 1e9);
  assert.equal(otherAxisValue(bySteps, 'step', 0, 10.5), 1.05e9);
  const byTime = await filled(() => [1, 1, 1], (ns) => Math.floor(ns / 128), 'time', 6);
  assert.equal(otherAxisValue(byTime, 'time', 6, 64 * 11), 5);
});

test('beside a lane stand its value, both of two, the greatest of more', () => {
  const heads = (kind: LaneInfo['kind'], ...means: (number | null)[]): number[] => {
    const series = means.map((_, i) => ({ name: String(i), title: '' }));
    return readLane({ ...lane('a', 'host'), kind, series }, (name) => {
      const mean = means[Number(name)];
      return typeof mean === 'number' ? { min: 0, max: 9, mean } : null;
    }).heads;
  };
  assert.deepEqual(heads('band', 3), [3]);
  assert.deepEqual(heads('band', 0, 2), [0, 2], 'a disk that is only written is not idle');
  assert.deepEqual(heads('band', 0, 7, 2), [7]);
  assert.deepEqual(heads('stack', 1, 2, null), [3]);
  assert.deepEqual(heads('band', null), []);
});
