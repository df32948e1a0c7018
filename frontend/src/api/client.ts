/** Fetches from the plugin's server, always by relative URL so that any proxy prefix works. */
import { decodeTiles, type TileBlock } from '../tiles/decode.ts';
import type { TileRequest } from '../tiles/request.ts';
import { readEmbedded, type Route } from './offline.ts';
import type { JobReply, RecordingReply, RunsReply, TotalReply, WindowReply } from './types.ts';

const offline = readEmbedded();

/** True in a report that is one file: there is no server to ask. */
export const isOffline = offline !== null;

/** True in a page of the sums of all runs: there is no run to open. */
export const isTable = offline?.isTable ?? false;

/** What a report in one file opens on, where its link says nothing else. */
export const openAtFirst: readonly string[] = offline?.shown ?? [];

/** A reply of the server. Throws what it says is wrong, in words. */
async function fetchReply(path: string, query: Record<string, string>, signal?: AbortSignal): Promise<Response> {
  const search = new URLSearchParams(query).toString();
  let reply: Response;
  try {
    reply = await fetch(search ? `${path}?${search}` : path, { signal: signal ?? null });
  } catch (error) {
    if ((error as Error).name === 'AbortError') throw error;
    throw new Error('TensorBoard does not answer. Is it still running?');
  }
  if (reply.ok) return reply;
  const body = await reply.text().catch(() => '');
  let message = `TensorBoard answered ${reply.status} ${reply.statusText}`.trim();
  try {
    const parsed: unknown = JSON.parse(body);
    if (parsed && typeof parsed === 'object' && 'error' in parsed) message = String(parsed.error);
  } catch {
    // not JSON: the status line says enough
  }
  throw new Error(message);
}

/** The JSON at a route, of the server or of this page. */
async function fetchJson<T>(route: Route, query: Record<string, string> = {}): Promise<T> {
  if (!offline) return (await (await fetchReply(`./${route}`, query)).json()) as T;
  const reply = offline.reply(route, query);
  if (reply === undefined) throw new Error(`This report does not hold that ${route === 'window' ? 'profiler window' : 'recording'}.`);
  return reply as T;
}

export const fetchRuns = (): Promise<RunsReply> => fetchJson('runs');

/** Null in a report in one file that holds no sums. */
export const fetchTotal = (): Promise<TotalReply | null> => fetchJson('total');

export const fetchRecording = (id: string): Promise<RecordingReply> => fetchJson('recording', { id });

export const fetchJob = (id: string): Promise<JobReply> => fetchJson('job', { id });

export const fetchWindow = (id: string, window: number): Promise<WindowReply> => fetchJson('window', { id, window: String(window) });

let profile: Promise<boolean> | undefined;

/** Whether this TensorBoard has the Profile plugin; asked once. */
export function hasProfilePlugin(): Promise<boolean> {
  if (offline) return Promise.resolve(false);
  return (profile ??= fetchReply('../../plugins_listing', {})
    .then((reply) => reply.json())
    .then((listing: unknown) => typeof listing === 'object' && listing !== null && Object.hasOwn(listing, 'profile'))
    .catch(() => false));
}

/** The buckets of lanes at a level, of the server or of this page. */
export async function fetchTiles(request: TileRequest, signal?: AbortSignal): Promise<TileBlock> {
  if (offline) return offline.tiles(request);
  const reply = await fetchReply(
    './tiles',
    {
      id: request.id,
      axis: request.axis,
      level: String(request.level),
      first: String(request.first),
      count: String(request.count),
      lanes: request.lanes.join(','),
    },
    signal,
  );
  return decodeTiles(await reply.arrayBuffer());
}

export const kernelsUrl = (id: string): string => `./export.csv?${new URLSearchParams({ id, table: 'kernels' }).toString()}`;

/** `steps`: first and last step of each recording, where they are known of all. */
export function exportUrl(kind: 'csv' | 'html', ids: readonly string[], steps: readonly (readonly [number, number] | null)[] = []): string {
  const query = new URLSearchParams(ids.map((id) => ['id', id]));
  for (const range of steps.includes(null) ? [] : steps) {
    query.append('first', String(range?.[0]));
    query.append('last', String(range?.[1]));
  }
  return `./export.${kind}?${query.toString()}`;
}
