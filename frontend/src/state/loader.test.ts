import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { RecordingSummary } from '../api/types.ts';
import { defaultRecording } from './loader.ts';

const recording = (id: string, start_ns: number, rest: Partial<RecordingSummary> = {}): RecordingSummary => ({
  id, run: id, session: id, status: 'ended', start_ns, end_ns: null, steps: 1, revision: 0, ...rest,
});

test('the newest recording is shown first, a live one before it', () => {
  assert.equal(defaultRecording([]), null);
  assert.equal(defaultRecording([recording('a', 1), recording('b', 2)])?.id, 'b');
  assert.equal(defaultRecording([recording('a', 1, { status: 'live' }), recording('b', 2)])?.id, 'a');
});

test("of a job's workers it is the first one, whichever began last", () => {
  const workers = [2, 0, 1].map((rank) => recording(`r${rank}`, 10 + rank, { rank, session: 'job' }));
  assert.equal(defaultRecording([recording('old', 1), ...workers])?.id, 'r0');
  const live = recording('r3', 5, { rank: 3, session: 'job', status: 'live' });
  assert.equal(defaultRecording([...workers, live])?.id, 'r3', 'the ones that ended do not hide a live one');
});
