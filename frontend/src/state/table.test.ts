import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { RecordingSummary, RunsReply, TotalReply, TrainingRow } from '../api/types.ts';
import { learn } from '../words/vocabulary.ts';
import { matching, ordered, rowsOf, type Row } from './table.ts';

const one = (run: string, start_ns: number, more: Partial<RecordingSummary> = {}): RecordingSummary => ({
  id: run, run, session: null, status: 'ended', start_ns, end_ns: start_ns + 2e9, steps: 1, revision: 0, ...more,
});
const runs = (recordings: RecordingSummary[]): RunsReply => ({ version: 1, logdir: '', tensorboard_runs: [], looked_for: '', recordings, problems: [] });
const training = (id: string, more: Partial<TrainingRow> = {}): TrainingRow => ({
  id, recordings: [], restarts: 0, ranks: 1, script: null, user: null, status: 'ended', start_ns: 1, wall_s: 1, gpus: 1, hours: 1, lost: 0, saves: 0, causes: [], top: null, ...more,
});
const total = (rows: TrainingRow[]): TotalReply => ({ unit: 'gpu_hours', headline: '', notes: [], hours: 0, shares: [], causes: [], fixes: {}, runs: rows });

const LIST = rowsOf(
  runs([
    one('lr-10', 1, { causes: ['host_stall'], titles: ['ModelCheckpoint stalls training'], lost_s: 3, verdict: 'ModelCheckpoint stalls training: 3 s' }),
    one('lr-9', 3, { causes: ['input_bound'], titles: ['Input-bound'], lost_s: 40 }),
    one('lr-2', 2, { lost_s: null }),
  ]),
  null,
);
const shown = (rows: Row[]): string[] => rows.map(({ item }) => item.run);
const found = (text: string, cause = ''): string[] => shown(matching(ordered(LIST, '-start'), text, cause));

test('a run is found by its cause, its titles and its verdict', () => {
  learn({ causes: { host_stall: { title: 'Training stalls', glyph: '◆', colour: 'mauve', between_steps: true, part: 'callbacks' } }, host: {}, gpu: {}, host_step: {} });
  assert.deepEqual(found('training STALLS'), ['lr-10']);
  assert.deepEqual(found('checkpoint'), ['lr-10']);
  assert.deepEqual(found('input_bound'), ['lr-9']);
  assert.deepEqual(found('lr stall 9'), []);
  assert.deepEqual(found('lr', 'input_bound'), ['lr-9']);
  assert.deepEqual(found('lr-2', 'input_bound'), []);
});

test('rows are in the order of a column, numbers in names by their value, what is not known last', () => {
  assert.deepEqual(shown(ordered(LIST, '-start')), ['lr-9', 'lr-2', 'lr-10']);
  assert.deepEqual(shown(ordered(LIST, '-lost')), ['lr-9', 'lr-10', 'lr-2']);
  assert.deepEqual(shown(ordered(LIST, 'lost')), ['lr-10', 'lr-9', 'lr-2']);
  assert.deepEqual(shown(ordered(LIST, 'name')), ['lr-2', 'lr-9', 'lr-10']);
  assert.deepEqual(shown(ordered(LIST, '-name')), ['lr-10', 'lr-9', 'lr-2']);
  for (const sort of ['cause', '-cause', '-hours']) assert.equal(ordered(LIST, sort).length, 3);
  assert.equal(shown(ordered(LIST, '-cause'))[2], 'lr-2');
  assert.equal(shown(ordered(LIST, 'cause'))[2], 'lr-2');
});

test('ranks and restarts are one row, and found by any of them', () => {
  const list = runs([one('a', 1, { host: 'node-1', rank: 0 }), one('b', 1, { host: 'node-2', rank: 1 }), one('c', 9), one('new', 20)]);
  const gone = training('deleted', { recordings: ['x', 'y'] });
  const rows = rowsOf(list, total([training('a', { recordings: ['a', 'b'], hours: 8, lost: 2, causes: ['host_stall', 'input_bound'], top: 'input_bound' }), training('c'), gone]));
  assert.deepEqual(shown(rows), ['a', 'c', 'new']);
  assert.deepEqual(shown(rows[0]?.parts ?? []), ['a', 'b']);
  assert.deepEqual(rows[0]?.causes, ['input_bound', 'host_stall']);
  assert.deepEqual([rows[0]?.hours, rows[2]?.hours, rows[2]?.wall], [8, null, 2]);
  assert.deepEqual(shown(matching(rows, 'node-2', '')), ['a']);
});
