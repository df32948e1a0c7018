import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { TileRequest } from '../api/client.ts';
import { TILE, TileStore } from './store.ts';
import { answer } from './testing.ts';

const settle = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 5));

function store(fail = false): { tiles: TileStore; asked: TileRequest[]; redrawn: () => number; now: { at: number }; mend: () => void } {
  const asked: TileRequest[] = [];
  let redrawn = 0;
  let failing = fail;
  const now = { at: 0 };
  const tiles = new TileStore(
    'id',
    async (request) => {
      asked.push(request);
      await Promise.resolve();
      if (failing) throw new Error('no');
      return answer(request, (_, bucket) => [bucket, bucket, bucket]);
    },
    () => redrawn++,
    () => now.at,
  );
  return { tiles, asked, redrawn: () => redrawn, now, mend: () => (failing = false) };
}

test('a view is fetched once, neighbouring tiles together', async () => {
  const { tiles, asked, redrawn } = store();
  const range = { start: 0, end: TILE * 3 };
  tiles.want([{ axis: 'step', level: 0, range, lanes: ['a', 'b'] }]);
  await settle();
  assert.equal(asked.length, 1);
  assert.equal(asked[0]?.count, TILE * 3);
  assert.ok(redrawn() > 0);
  assert.ok(tiles.covers('step', 0, range, 'a/a'));
  tiles.want([{ axis: 'step', level: 0, range, lanes: ['a', 'b'] }]);
  await settle();
  assert.equal(asked.length, 1);
});

test('a lane that comes into sight is fetched alone and joins the tile', async () => {
  const { tiles, asked } = store();
  const want = (lanes: string[]): void => tiles.want([{ axis: 'step', level: 0, range: { start: 0, end: 10 }, lanes }]);
  want(['a']);
  await settle();
  want(['a', 'b']);
  await settle();
  assert.deepEqual(asked[1]?.lanes, ['b']);
  assert.ok(tiles.covers('step', 0, { start: 0, end: 10 }, 'a/a'));
  assert.ok(tiles.covers('step', 0, { start: 0, end: 10 }, 'b/b'));
});

test('while a finer level loads, the coarser one is drawn', async () => {
  const { tiles } = store();
  const range = { start: 0, end: 1000 };
  tiles.want([{ axis: 'step', level: 4, range, lanes: ['a'] }]);
  await settle();
  assert.equal(tiles.best('step', 1, range, 'a/a')[0]?.level, 4);
  tiles.want([{ axis: 'step', level: 1, range, lanes: ['a'] }]);
  await settle();
  assert.equal(tiles.best('step', 1, range, 'a/a')[0]?.level, 1);
});

test('growth fetches the end anew and leaves sealed tiles alone', async () => {
  const { tiles, asked } = store();
  const range = { start: 0, end: TILE * 3 };
  const want = (): void => tiles.want([{ axis: 'step', level: 0, range, lanes: ['a'] }]);
  want();
  await settle();
  tiles.invalidateFrom('step', TILE * 2 + 5);
  assert.ok(tiles.covers('step', 0, range, 'a/a'), 'the stale tile is still drawn');
  want();
  await settle();
  assert.equal(asked.length, 2);
  assert.deepEqual([asked[1]?.first, asked[1]?.count], [TILE * 2, TILE]);
});

test('a failed request rests for a while, then is tried again', async () => {
  const { tiles, asked, now, mend } = store(true);
  const want = (): void => tiles.want([{ axis: 'step', level: 0, range: { start: 0, end: 10 }, lanes: ['a'] }]);
  want();
  await settle();
  assert.equal(asked.length, 1);
  assert.equal(tiles.error?.message, 'no');
  want();
  await settle();
  assert.equal(asked.length, 1);
  mend();
  now.at = 6000;
  want();
  await settle();
  assert.equal(asked.length, 2);
  assert.equal(tiles.error, null);
});
