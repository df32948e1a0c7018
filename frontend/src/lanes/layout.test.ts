import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { LaneInfo } from '../api/types.ts';
import { groupKey, laneKey, lanesByGroup, layOut, rowAt, seriesRowKey, type LaneSource } from './layout.ts';

const lane = (id: string, group: string): LaneInfo => ({ id, group, title: id, unit: '%', kind: 'band', series: [{ name: id, title: id }] });
const source = (id: string): LaneSource => ({
  id, label: id, groupTitles: { gpu0: 'gpu0 · H200' },
  lanes: [lane('host:cpu', 'host'), lane('gpu10:power_mw', 'gpu10'), lane('gpu2:power_mw', 'gpu2'), lane('gpu0:power_mw', 'gpu0'), lane('gpu0:temperature_c', 'gpu0'), { ...lane('steps', 'training'), kind: 'stack' }],
});
const CLOSED = { collapsed: new Set<string>(), pinned: [], hidden: new Set<string>() };
/** Every group is open, however it begins. */
const groups = ['host', 'model', ...Array.from({ length: 64 }, (_, i) => `gpu${i}`)];
const NONE = { ...CLOSED, collapsed: new Set(['a', 'b'].flatMap((id) => groups.map((group) => groupKey(id, group)))) };
const without = (...keys: string[]): Set<string> => new Set([...NONE.collapsed].filter((key) => !keys.includes(key)));
const and = (...keys: string[]): Set<string> => new Set([...NONE.collapsed, ...keys]);

test('training first, GPUs by number, the host last', () => {
  const { rows } = layOut([source('a')], NONE, false);
  assert.deepEqual(rows.map((row) => (row.type === 'group' ? row.title : row.lane.id)),
    ['steps', 'gpu0 · H200', 'gpu0:power_mw', 'gpu0:temperature_c', 'gpu2', 'gpu2:power_mw', 'gpu10', 'gpu10:power_mw', 'Host', 'host:cpu']);
});

test('rows follow each other without gaps, and are found by their place', () => {
  const layout = layOut([source('a'), source('b')], NONE, true);
  let top = 0;
  for (const row of layout.rows) {
    assert.equal(row.top, top);
    assert.equal(rowAt(layout, top + 1), row);
    top += row.height;
  }
  assert.equal(layout.height, top);
  assert.equal(rowAt(layout, top + 1), null);
});

test('a collapsed group keeps its header only', () => {
  const { rows } = layOut([source('a')], { ...NONE, collapsed: without('a#gpu0') }, false);
  assert.ok(!rows.some((row) => row.type === 'lane' && row.lane.group === 'gpu0'));
  assert.ok(rows.some((row) => row.type === 'group' && row.title === 'gpu0 · H200' && row.collapsed && row.lanes === 2));
});

test("a GPU's lesser lanes stand in a closed group below it", () => {
  const lanes = ['utilization_pct', 'memory_used_bytes', 'fp64_active_pct', 'pcie_width'].map((name) => lane(`gpu0:${name}`, 'gpu0'));
  const gpus = { ...source('a'), lanes: [...lanes, lane('gpu1:utilization_pct', 'gpu1')] };
  const keys = layOut([gpus], NONE, false).rows.map(({ key }) => key);
  assert.deepEqual(keys, ['a#gpu0', 'a#gpu0:utilization_pct', 'a#gpu0:memory_used_bytes', 'a#gpu0 more', 'a#gpu1', 'a#gpu1:utilization_pct']);
  const open = layOut([gpus], { ...NONE, collapsed: and('a#gpu0 more') }, false).rows.map(({ key }) => key);
  assert.deepEqual(open.slice(3, 6), ['a#gpu0 more', 'a#gpu0:fp64_active_pct', 'a#gpu0:pcie_width']);
});

test('how a step went is open at first, everything else closed; the lane of time stands above them all', () => {
  const { rows } = layOut([{ ...source('a'), lanes: [{ ...lane('time:gpu0', 'time'), kind: 'time' }, ...source('a').lanes] }], CLOSED, false);
  assert.deepEqual(rows.map(({ key }) => key), ['a#steps', 'a#gpu0', 'a#gpu2', 'a#gpu10', 'a#host']);
});

test('lanes in which nothing ever happens stand apart', () => {
  const idle = { ...source('a'), lanes: [lane('host:cpu_pct', 'host'), { ...lane('host:iowait_pct', 'host'), minor: true }] };
  assert.deepEqual(layOut([idle], NONE, false).rows.map(({ key }) => key), ['a#host', 'a#host:cpu_pct', 'a#host more']);
});

test('hundreds of cores are one closed group until it is opened', () => {
  const many = { ...source('a'), lanes: [lane('host:cpu_pct', 'host'), ...Array.from({ length: 200 }, (_, i) => lane(`host:cpu${i}_pct`, 'host'))] };
  const closed = layOut([many], NONE, false).rows;
  assert.deepEqual(closed.map(({ key }) => key), ['a#host', 'a#host:cpu_pct', 'a#host cores']);
  const open = layOut([many], { ...NONE, collapsed: and('a#host cores') }, false).rows;
  assert.equal(open.length, 203);
});

test('a pinned lane stands on top and only there; one that is gone is forgotten', () => {
  const { rows } = layOut([source('a')], { ...NONE, pinned: ['a#gone', laneKey('a', 'gpu2:power_mw')] }, false);
  assert.equal(rows[0]?.key, laneKey('a', 'gpu2:power_mw'));
  assert.equal(rows.filter((row) => row.key === laneKey('a', 'gpu2:power_mw')).length, 1);
});

test('compared recordings stand lane by lane, each with the name of its run', () => {
  const { rows } = layOut([source('a'), source('b')], NONE, false);
  assert.deepEqual(rows.slice(0, 8).map(({ key }) => key), ['a#training', 'a#steps', 'b#steps', 'a#gpu0', 'a#gpu0:power_mw', 'b#gpu0:power_mw', 'a#gpu0:temperature_c', 'b#gpu0:temperature_c']);
  assert.deepEqual(rows.slice(1, 3).map((row) => row.type === 'lane' && row.origin), ['a', 'b']);
  const folded = layOut([source('a'), source('b')], { ...NONE, collapsed: without('a#gpu0') }, false).rows;
  assert.ok(!folded.some(({ key }) => key.includes('#gpu0:')), 'a group folds with all of its runs');
});

test('lanes in which other workers are drawn say whose stands in front', () => {
  const { rows } = layOut([{ ...source('a'), front: 'rank 2' }], NONE, false);
  assert.deepEqual(rows.flatMap((row) => (row.type === 'lane' ? row.origin : [])).slice(0, 2), ['rank 2', 'rank 2']);
  assert.equal(rows[0]?.key, 'a#steps', 'one run: no header above its steps');
});

test('what only a compared recording has stands in its own place', () => {
  const two = { ...source('b'), lanes: [...source('b').lanes, lane('gpu3:power_mw', 'gpu3')] };
  const keys = layOut([source('a'), two], NONE, false).rows.map(({ key }) => key);
  assert.deepEqual(keys.slice(keys.indexOf('b#gpu2:power_mw') + 1).slice(0, 2), ['b#gpu3', 'b#gpu3:power_mw']);
});

test('of many GPUs those stand first that a finding names', () => {
  const many = { ...source('a'), lanes: Array.from({ length: 64 }, (_, i) => lane(`gpu${i}:power_mw`, `gpu${i}`)) };
  const first = (one: LaneSource): string | undefined => layOut([one], CLOSED, false).rows[0]?.key;
  assert.equal(first(many), 'a#gpu0');
  assert.equal(first({ ...many, named: new Set(['gpu37']) }), 'a#gpu37');
});

test('a series that is hidden is not in its row, and the lane stays', () => {
  const two = { ...source('a'), lanes: [{ ...lane('steps', 'training'), series: [{ name: 'body', title: 'body' }, { name: 'input_wait', title: 'input_wait' }] }] };
  const [row] = layOut([two], { ...NONE, hidden: new Set([seriesRowKey('a#steps', 'body')]) }, false).rows;
  assert.ok(row?.type === 'lane');
  assert.deepEqual(row.lane.series.map(({ name }) => name), ['input_wait']);
  assert.equal(row.whole.series.length, 2);
});

test('a GPU with lesser lanes only shows them at once', () => {
  const traced = { ...source('a'), lanes: [lane('gpu1:kernel_busy_pct', 'gpu1'), lane('gpu1:any_busy_pct', 'gpu1')] };
  assert.deepEqual(layOut([traced], NONE, false).rows.map(({ key }) => key), ['a#gpu1', 'a#gpu1:kernel_busy_pct', 'a#gpu1:any_busy_pct']);
});

test('the list of lanes has every one of them', () => {
  const one = source('a');
  assert.equal(lanesByGroup(one).flatMap((group) => group.lanes).length, one.lanes.length);
});
