import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { RecordingReply, Status, WorkerReply } from '../api/types.ts';
import { brokeOffAt, brokeOffText } from './ends.ts';
import { startsLater } from './workers.ts';

const recording = (id: string, start_ns: number, seconds = 10, status: Status = 'ended'): RecordingReply =>
  ({ id, extent: { start_ns, end_ns: start_ns + seconds * 1e9, first_step: 0, last_step: 230 }, report: { status } }) as unknown as RecordingReply;
const worker = (id: string, offset_ns: number, drift = 0, at_ns = 0): WorkerReply => ({ id, rank: 0, host: null, clock: { offset_ns, drift, at_ns, text: '' } });

test('workers stand where they began by the reference worker’s clock', () => {
  const [first, second] = [recording('a', 100e9), recording('b', 98.5e9)];
  assert.equal(startsLater(first, first, [], null), 0);
  assert.equal(startsLater(second, first, [], null), -1.5e9); // nothing is known of its clock
  const clocks = [worker('a', 0), worker('b', -2e9)];
  assert.equal(startsLater(second, first, clocks, null), 0.5e9);
  assert.equal(startsLater(first, second, clocks, null), -0.5e9);
});

test('a clock that drifts is right where one looks', () => {
  const [first, second] = [recording('a', 0, 3600), recording('b', 0, 3600)];
  const clocks = [worker('a', 0), worker('b', 0, 1e-4, 0)];
  assert.equal(startsLater(second, first, clocks, { start: 0, end: 0 }), 0);
  assert.equal(startsLater(second, first, clocks, { start: 999e9, end: 1001e9 }), -0.1e9);
  assert.equal(startsLater(second, first, clocks, null), -0.18e9);
});

test('a recording that broke off is marked at its last step', () => {
  const lost = { recording: recording('b', 0, 12, 'lost'), shift: 2e9 };
  assert.equal(brokeOffAt({ axis: 'time' }, lost), 14e9);
  assert.equal(brokeOffAt({ axis: 'step' }, { ...lost, shift: 0 }), 231);
  assert.equal(brokeOffText(lost), 'killed after 231 steps · 0:12');
  assert.equal(brokeOffAt({ axis: 'time' }, { recording: recording('a', 0), shift: 0 }), null);
  assert.equal(brokeOffAt({ axis: 'time' }, { recording: recording('a', 0, 10, 'live'), shift: 0 }), null);
});
