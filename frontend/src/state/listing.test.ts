import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { RecordingSummary } from '../api/types.ts';
import { learn } from '../words/vocabulary.ts';
import { listed } from './listing.ts';

const one = (run: string, start_ns: number, more: Partial<RecordingSummary> = {}): RecordingSummary => ({
  id: run, run, session: null, status: 'ended', start_ns, end_ns: null, steps: 1, revision: 0, ...more,
});
const LIST = [
  one('lr-10', 1, { causes: ['host_stall'], titles: ['ModelCheckpoint stalls training'], lost_s: 3, verdict: 'ModelCheckpoint stalls training: 3 s' }),
  one('lr-9', 3, { causes: ['input_bound'], titles: ['Input-bound'], lost_s: 40 }),
  one('lr-2', 2, { lost_s: 0 }),
];
const runs = (text: string, order: 'newest' | 'lost' | 'name' = 'newest'): string[] => listed(LIST, text, order).map(({ run }) => run);

test('a recording is found by its cause, its titles and its verdict', () => {
  learn({ causes: { host_stall: 'Training stalls' }, host: {}, gpu: {}, host_step: {} });
  assert.deepEqual(runs('training STALLS'), ['lr-10']);
  assert.deepEqual(runs('checkpoint'), ['lr-10']);
  assert.deepEqual(runs('input_bound'), ['lr-9']);
  assert.deepEqual(runs('lr stall 9'), []);
});

test('the newest, the costliest, or names first, numbers in names by their value', () => {
  assert.deepEqual(runs(''), ['lr-9', 'lr-2', 'lr-10']);
  assert.deepEqual(runs('', 'lost'), ['lr-9', 'lr-10', 'lr-2']);
  assert.deepEqual(runs('', 'name'), ['lr-2', 'lr-9', 'lr-10']);
});
