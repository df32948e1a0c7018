import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { LaneInfo } from '../api/types.ts';
import { groupKey, laneKey, layOut, rowAt, type LaneSource } from './layout.ts';

const lane = (id: string, group: string): LaneInfo => ({ id, group, title: id, unit: '%', kind: 'band', series: [{ name: id }] });
const source = (id: string): LaneSource => ({
  id, label: id, groupTitles: { gpu0: 'gpu0 · H200' },
  lanes: [lane('host:cpu', 'host'), lane('gpu10:power_mw', 'gpu10'), lane('gpu2:power_mw', 'gpu2'), lane('gpu0:power_mw', 'gpu0'), lane('gpu0:temperature_c', 'gpu0'), { ...lane('steps', 'training'), kind: 'stack' }],
});
const NONE = { collapsed: new Set<string>(), pinned: [], hidden: new Set<string>() };

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
  const { rows } = layOut([source('a')], { ...NONE, collapsed: new Set([groupKey('a', 'gpu0')]) }, false);
  assert.ok(!rows.some((row) => row.type === 'lane' && row.lane.group === 'gpu0'));
  assert.ok(rows.some((row) => row.type === 'group' && row.title === 'gpu0 · H200' && row.collapsed && row.lanes === 2));
});

test("a GPU's lesser lanes stand in a closed group below it", () => {
  const lanes = ['utilization_pct', 'memory_used_bytes', 'fp64_active_pct', 'pcie_width'].map((name) => lane(`gpu0:${name}`, 'gpu0'));
  const gpus = { ...source('a'), lanes: [...lanes, lane('gpu1:utilization_pct', 'gpu1')] };
  const keys = layOut([gpus], NONE, false).rows.map(({ key }) => key);
  assert.deepEqual(keys, ['a#gpu0', 'a#gpu0:utilization_pct', 'a#gpu0:memory_used_bytes', 'a#gpu0 more', 'a#gpu1', 'a#gpu1:utilization_pct']);
  const open = layOut([gpus], { ...NONE, collapsed: new Set(['a#gpu0 more']) }, false).rows.map(({ key }) => key);
  assert.deepEqual(open.slice(3, 6), ['a#gpu0 more', 'a#gpu0:fp64_active_pct', 'a#gpu0:pcie_width']);
});

test('hundreds of cores are one closed group until it is opened', () => {
  const many = { ...source('a'), lanes: [lane('host:cpu_pct', 'host'), ...Array.from({ length: 200 }, (_, i) => lane(`host:cpu${i}_pct`, 'host'))] };
  const closed = layOut([many], NONE, false).rows;
  assert.deepEqual(closed.map(({ key }) => key), ['a#host', 'a#host:cpu_pct', 'a#host cores']);
  const open = layOut([many], { ...NONE, collapsed: new Set([groupKey('a', 'host cores')]) }, false).rows;
  assert.equal(open.length, 203);
});

test('a pinned lane stands on top and only there; one that is gone is forgotten', () => {
  const { rows } = layOut([source('a')], { ...NONE, pinned: ['a#gone', laneKey('a', 'gpu2:power_mw')] }, false);
  assert.equal(rows[0]?.key, laneKey('a', 'gpu2:power_mw'));
  assert.equal(rows.filter((row) => row.key === laneKey('a', 'gpu2:power_mw')).length, 1);
});

test('compared recordings stand group by group', () => {
  const { rows } = layOut([source('a'), source('b')], NONE, false);
  const groups = rows.filter((row) => row.type === 'group').map((row) => row.key);
  assert.deepEqual(groups.slice(0, 4), ['a#training', 'b#training', 'a#gpu0', 'b#gpu0']);
});
