import assert from 'node:assert/strict';
import { test } from 'node:test';
import { evidenceRows } from './evidence.ts';

const row = { name: 'wait_pct', label: 'waiting for input', value: '83 %', rule: '≥ 5 %' };

test("the server's rows are shown as they are", () => {
  assert.deepEqual(evidenceRows({ rows: [{ ...row, bar: [83, 5] }] }), [{ ...row, bar: [83, 5] }]);
  assert.deepEqual(evidenceRows({}), []);
});

test('a chart needs two numbers, and a limit above nothing', () => {
  for (const bar of [null, [83, 0], [-1, 5], ['83', 5]] as [number, number][]) assert.equal(evidenceRows({ rows: [{ ...row, bar }] })[0]?.bar, null);
});

test('hostile names are harmless', () => {
  const [found] = evidenceRows({ rows: [{ ...row, label: 'a\u202Eb\u0000', value: '\u0007', bar: null }] });
  assert.doesNotMatch(`${found?.label}${found?.value}`, /[\u0000-\u001f\u202e]/);
});
