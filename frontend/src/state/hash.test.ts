import assert from 'node:assert/strict';
import { test } from 'node:test';
import { decodeHash, EMPTY_LINK, encodeHash, type LinkState } from './hash.ts';

const FULL: LinkState = {
  id: 'runs/a b&c=d#e/2026-x', compare: ['x/y', 'z,w'], axis: 'clock', view: { start: 12.5, end: 4800 }, follow: true, selected: 'input_bound-0', touched: true, tables: true,
  measure: { start: 1e12, end: 1.5e12 }, collapsed: ['id#gpu0'], pinned: ['id#gpu0:utilization_pct'], hidden: ['a%2Cb'], window: { number: 3, step: 124 },
  list: true, sort: 'name', search: 'lr 1&2 ü', cause: 'input_bound',
};

test('a link opens exactly the view it was made of', () => {
  assert.deepEqual(decodeHash(encodeHash('', FULL)), FULL);
  assert.deepEqual(decodeHash(encodeHash('', EMPTY_LINK)), EMPTY_LINK);
});

test('steps are written once somebody chose them, so that a link keeps them', () => {
  assert.ok(!encodeHash('', { ...EMPTY_LINK, id: 'a' }).includes('axis'));
  const chosen: LinkState = { ...EMPTY_LINK, id: 'a', axis: 'steps' };
  assert.deepEqual(decodeHash(encodeHash('', chosen)), chosen);
});

test("TensorBoard's own and other plugins' parts stay", () => {
  const hash = encodeHash('#scalars&p.other.key=1&tagFilter=x', FULL);
  assert.ok(hash.startsWith('#gpu_utilization&'));
  assert.ok(hash.includes('p.other.key=1') && hash.includes('tagFilter=x'));
  assert.equal(encodeHash(hash, FULL), hash, 'writing twice changes nothing');
});

test('a link to a run says nothing of the table that one came from', () => {
  assert.deepEqual(decodeHash(encodeHash('', { ...EMPTY_LINK, id: 'a', sort: '-lost', search: 'x', cause: 'y' })), { ...EMPTY_LINK, id: 'a' });
  assert.equal(decodeHash('#p.gpu_utilization.list=1&p.gpu_utilization.sort=<b>').sort, EMPTY_LINK.sort);
});

test('a broken link opens what it can', () => {
  for (const hash of ['', '#', '#gpu_utilization', '#p.gpu_utilization.view=a~b&p.gpu_utilization.axis=sideways', '#p.gpu_utilization.id=%E0%A4%A', '#p.gpu_utilization.view=5~1', '#p.gpu_utilization.view=1~2~3', '#p.gpu_utilization.window=1~x', '#p.gpu_utilization.window=-1', '#p.gpu_utilization.view=0~Infinity'])
    assert.deepEqual(decodeHash(hash), EMPTY_LINK);
});
