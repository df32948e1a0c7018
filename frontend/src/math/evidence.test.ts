import assert from 'node:assert/strict';
import { test } from 'node:test';
import { evidenceLabel, evidenceRows, evidenceValue } from './evidence.ts';

test('units come from the names', () => {
  assert.equal(evidenceValue('wait_pct', 83), '83 %');
  assert.equal(evidenceValue('input_wait_share', 0.83), '83 %');
  assert.equal(evidenceValue('stage_ms_per_batch', 31.2), '31.2 ms');
  assert.equal(evidenceValue('memory_used_bytes', 2 ** 31), '2 GiB');
  assert.equal(evidenceValue('faster_up_to', 3.97), '4×');
  assert.equal(evidenceValue('seconds_each', 16), '16 s');
  assert.equal(evidenceValue('x', null), '–');
  assert.equal(evidenceValue('x', true), 'yes');
  assert.equal(evidenceValue('gpus', [0, 1, 2, 3, 4, 5, 6]), '0, 1, 2, 3, 4, 5 and 1 more');
});

test('labels lose the unit the value already shows', () => {
  assert.equal(evidenceLabel('sm_clock_mhz'), 'sm clock');
  assert.equal(evidenceLabel('gpu_temperature_c'), 'GPU temperature');
});

test('a threshold stands beside the evidence it judged, on the side that fired', () => {
  const rows = evidenceRows({ wait_pct: 83, gpu_active_pct: 12, note: 'x' }, { wait_pct: 5, gpu_active_pct: 70 });
  assert.deepEqual(
    rows.map(({ value, threshold }) => [value, threshold]),
    [['83 %', '≥ 5 %'], ['12 %', '< 70 %'], ['x', '']],
  );
});

test('named sides and thresholds without evidence are shown too', () => {
  const rows = evidenceRows({ stall_s: 16 }, { min_stall_s: 1, max_temperature_c: 85 });
  assert.equal(rows[0]?.threshold, '≥ 1 s');
  assert.equal(rows[1]?.threshold, '≤ 85 °C');
  assert.deepEqual(evidenceRows(null, undefined), []);
  assert.deepEqual(evidenceRows({ gpu_active_pct: null }, { gpu_active_pct: 70 }), [], 'what was not measured was not judged');
});

test('hostile names are harmless', () => {
  const [row] = evidenceRows({ ['a\u202Eb\u0000']: '\u0007' }, {});
  assert.doesNotMatch(`${row?.label}${row?.value}`, /[\u0000-\u001f\u202e]/);
});
