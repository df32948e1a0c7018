import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { WordedFinding, JobReply } from '../api/types.ts';
import { learn } from '../words/vocabulary.ts';
import { allFindings, grouped, headlineOf, positionText, remedyOf, rowsOf, type Group } from './findings.ts';

const one = (cause: string, lost_s: number | null, code: string, start_step?: number, title = cause): WordedFinding => ({
  cause, title, lost_s, saves_s: lost_s, advice: { text: 'mend it', code }, ...(start_step === undefined ? {} : { start_step, end_step: start_step + 10 }),
});

test('one cause is one row, whose seconds are the sum; each of its remedies mends its own', () => {
  const spans = [one('input_bound', 2, 'a', 300), one('host_stall', 3, 'b', 10), one('input_bound', 4, 'a', 100), one('input_bound', 1, 'c', 500)];
  const groups = grouped(allFindings({ spans, findings: [] }));
  assert.deepEqual(groups.map(({ lost, list }) => [lost, list.length]), [[7, 3], [3, 1]]);
  assert.deepEqual(groups[0]?.list.map(({ item }) => item.start_step), [100, 300, 500]);
  assert.equal(groups[0]?.first.item.lost_s, 4);
  const remedies = groups[0]?.list.map(({ item }) => remedyOf(groups[0] as Group, item));
  assert.deepEqual(remedies?.map(({ item }) => [item.advice?.code, item.lost_s]), [['a', 4], ['a', 4], ['c', 1]]);
});

test('what the verdict sums up is one row, whatever it is called', () => {
  const spans = [one('input_bound', 8, 'a', 0), one('input_bound', 4, 'b', 50, 'Waiting between epochs')];
  const rows = (ids: string[]): (number | null)[] => rowsOf({ spans, findings: [], headline: { cause: 'input_bound', title: '', ids, lost_s: 12, saves_s: 0, all_saves_s: 0, faster_up_to: null } }, null).map(({ lost }) => lost);
  const ids = allFindings({ spans, findings: [] }).map(({ id }) => id);
  assert.deepEqual([rows(ids), rows([])], [[12], [8, 4]]);
});

test('what is not known stays unknown and stands last', () => {
  const groups = grouped(allFindings({ spans: [], findings: [one('no_tensor_cores', null, 'x'), one('launch_bound', 1, 'y')] }));
  assert.deepEqual(groups.map(({ lost }) => lost), [1, null]);
});

test('a question whose yes surely saves more comes before a small fix, and before a finding that nothing shortens', () => {
  const asked = { ...one('host_stall', 15, 'a'), saves_s: 0, saves_range_s: [12.9, 15.6] as [number, number], advice: { text: 'Is it?', code: 'a', question: true } };
  const small = { ...one('sync_bound', 0.2, 'b'), saves_s: 0.1, saves_range_s: [0, 0.2] as [number, number] };
  const sure = { ...one('input_bound', 20, 'c'), saves_s: 14, saves_range_s: [13, 15] as [number, number] };
  const none = { ...one('transfer_bound', 16, 'd'), saves_s: 0 };
  const rows = (findings: WordedFinding[]): string[] => grouped(allFindings({ spans: [], findings })).map(({ first }) => first.item.cause);
  assert.deepEqual(rows([small, none, asked, sure]), ['input_bound', 'host_stall', 'sync_bound', 'transfer_bound']);
  const large = { ...one('launch_bound', 8, 'e'), saves_s: 4, saves_range_s: [0, 6] as [number, number] };
  assert.deepEqual(rows([{ ...asked, saves_range_s: [0.02, 0.1] }, large]), ['launch_bound', 'host_stall'], 'a fix that may save nothing is still the larger one');
});

test('what blocks comes first, as in the terminal, though its cost is not known', () => {
  learn({ causes: { cpu_fallback: { title: 'GPU not used', glyph: '⌂', colour: 'red', between_steps: false, part: '', blocking: true } }, host: {}, gpu: {}, host_step: {} });
  const groups = grouped(allFindings({ spans: [], findings: [one('input_bound', 9, 'a'), one('cpu_fallback', null, 'b')] }));
  assert.deepEqual(groups.map(({ first }) => first.item.cause), ['cpu_fallback', 'input_bound']);
});

test('of a fix and a question about one cause the fix alone counts, and is the remedy shown', () => {
  const fix = { ...one('input_bound', 4, 'a', 0), saves_s: 3, saves_range_s: [2, 4] as [number, number], fix: 'f' };
  const asked = { ...one('input_bound', 8, 'a', 50), saves_s: 0, saves_range_s: [5, 8] as [number, number], fix: 'f', advice: { text: 'Is it?', code: 'a', question: true } };
  const [group] = grouped(allFindings({ spans: [fix, asked], findings: [] }));
  assert.deepEqual(group?.range, [2, 4]);
  const remedy = remedyOf(group as Group, asked);
  assert.deepEqual([remedy.item.advice?.question, remedy.range], [undefined, [2, 4]]);
});

test('the headline is what the verdict names, or is about by its ids; none where all is well', () => {
  const spans = [one('input_bound', 4, 'a', 0), one('input_bound', 5, 'b', 50), one('launch_bound', 6, 'c', 90, 'Launch-bound')];
  const findings = [one('cpu_fallback', 1, 'd', undefined, 'Running on the CPU')];
  const ids = allFindings({ spans, findings }).map(({ id }) => id);
  const about = { cause: 'input_bound', title: 'Input-bound', ids: ids.slice(0, 2), lost_s: 9, saves_s: 9, all_saves_s: 16, faster_up_to: 2 };
  const of = (verdict: string, headline: typeof about | null): string | null | undefined => headlineOf({ spans, findings, verdict, headline })?.first.item.advice?.code;
  assert.equal(of('Running on the CPU.', about), 'd');
  assert.equal(of('The input pipeline starves the GPU: 9 s of 20 s.', about), 'b', 'the costlier of two remedies');
  assert.equal(of('Nothing large held training back: …', null), undefined);
  assert.equal(headlineOf({ spans: [], findings: [], verdict: 'No training step was recorded yet.' }), null);
});

test('what the server says one change fixes is one group, whatever its numbers', () => {
  const spans = [1, 2].map((n) => ({ cause: 'input_bound', title: 'Input-bound', lost_s: n, fix: 'f', start_step: n, end_step: n + 1, advice: { text: `takes ${n} ms`, code: `workers = ${n}` } }));
  const [group, ...others] = grouped(allFindings({ spans, findings: [] }));
  assert.deepEqual([group?.list.length, group?.lost, others.length], [2, 3, 0]);
});

test('where a finding stands: among the rows, and among the spans of its row', () => {
  const span = (id: string, cause: string, lost_s: number) => ({ id, cause, lost_s, title: cause, start_step: Number(id.slice(1)), end_step: Number(id.slice(1)) + 1 });
  const report = { spans: [span('s1', 'a', 9), span('s2', 'b', 1), span('s3', 'a', 9)], findings: [{ id: 'f', cause: 'c', title: 'c', lost_s: 0.5 }] };
  const job = { workers: [{ id: 'x' }, { id: 'y' }], findings: [{ id: 'j', cause: 'imbalance', title: 'i', lost_s: 5 }], since: null } as unknown as JobReply;
  assert.deepEqual(['s3', 's2', 'f', 'none'].map((id) => positionText(rowsOf(report, null), id)), ['finding 1 of 3 · 2nd of 2 spans', 'finding 2 of 3', 'finding 3 of 3', '']);
  assert.deepEqual(rowsOf(report, job).map(({ first }) => first.id), ['j', 's1', 's2', 'f']);
});
