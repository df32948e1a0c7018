import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { FindingRow, JobReply, WordedFinding } from '../api/types.ts';
import { headlineOf, positionText, remedyOf, rowsOf } from './findings.ts';

const span = (id: string, cause: string, lost_s: number): WordedFinding => ({ id, cause, lost_s, title: cause, fix: `${cause}|fix`, start_step: Number(id.slice(1)), end_step: Number(id.slice(1)) + 1 });
const row = (...ids: string[]): FindingRow => ({ ids, first: ids[0] ?? '', lost_s: 9, remedies: {} });
const report = {
  spans: [span('s1', 'a', 9), span('s2', 'b', 1), span('s3', 'a', 9)],
  findings: [{ id: 'f', cause: 'c', title: 'c', lost_s: 0.5 }],
  rows: [{ ...row('s1', 's3'), remedies: { 'a|fix': { id: 's3', saves_range_s: [2, null] as [number, null], command: '' } } }, row('s2'), row('f')],
  lead: 's2',
};

test('rows are the server\'s, a job\'s before those of its recording', () => {
  const job = { workers: [{ id: 'x' }, { id: 'y' }], findings: [{ id: 'j', cause: 'imbalance', title: 'i', lost_s: 5 }], rows: [row('j')], since: null } as unknown as JobReply;
  assert.deepEqual(rowsOf(report, job).map(({ list }) => list.map(({ id }) => id)), [['j'], ['s1', 's3'], ['s2'], ['f']]);
  assert.deepEqual(rowsOf({ ...report, rows: [row('gone'), row('s2')] }, null).map(({ first }) => first.cause), ['b']);
});

test('the verdict speaks of one row, or of none', () => {
  assert.equal(headlineOf(report)?.first.id, 's2');
  assert.equal(headlineOf({ ...report, lead: null }), null);
});

test('a finding is mended by the remedy that its row has for its fix', () => {
  const [first, second] = rowsOf(report, null);
  assert.ok(first && second);
  assert.deepEqual([remedyOf(first, first.first).item.id, remedyOf(first, first.first).range], ['s3', [2, null]]);
  assert.deepEqual([remedyOf(second, second.first).item.id, remedyOf(second, second.first).range], ['s2', null]);
});

test('where a finding stands: among the rows, and among the spans of its row', () => {
  assert.deepEqual(['s3', 's2', 'f', 'none'].map((id) => positionText(rowsOf(report, null), id)), ['finding 1 of 3 · 2nd of 2 spans', 'finding 2 of 3', 'finding 3 of 3', '']);
});
