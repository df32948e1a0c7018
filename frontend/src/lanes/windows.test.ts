import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { TracedStep, WindowInfo } from '../api/types.ts';
import { nearestStep, tracedSteps, windowBoxes } from './windows.ts';

const step = (number: number, gpu: number): TracedStep => ({ step: number, gpu, start_ns: number * 100, duration_ns: 80 });
const steps = [10, 11, 12].flatMap((number) => [step(number, 0), step(number, 1)]);

test('the traced step nearest to a place is shown', () => {
  assert.deepEqual(tracedSteps(steps), [10, 11, 12]);
  assert.equal(nearestStep(steps, { step: 11 }), 11);
  assert.equal(nearestStep(steps, { step: 3 }), 10);
  assert.equal(nearestStep(steps, { step: 99 }), 12);
  assert.equal(nearestStep(steps, { step: null, ns: 1150 }), 11);
  assert.equal(nearestStep(steps, { step: null, ns: 1195 }), 12, 'between two: the nearer');
  assert.equal(nearestStep(steps, { step: null }), 10, 'nothing said: the first');
  assert.equal(nearestStep([], { step: 4 }), null);
});

test('windows lie on both axes, where their times are known', () => {
  const window = { window: 0, first_step: 10, stop_step: 13, start_ns: 1000, end_ns: 1300 } as WindowInfo;
  const extent = { start_ns: 500, end_ns: 9000, first_step: 0, last_step: 50 };
  assert.deepEqual(windowBoxes([window], 'step', extent)[0]?.range, { start: 10, end: 13 });
  assert.deepEqual(windowBoxes([window], 'time', extent)[0]?.range, { start: 500, end: 800 });
  assert.deepEqual(windowBoxes([{ ...window, start_ns: null }], 'time', extent), []);
});
