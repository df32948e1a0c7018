/** Fetches from the plugin's server, always by relative URL so that any proxy prefix works. */
import { decodeTiles, type TileBlock } from '../tiles/decode.ts';
import type { TileRequest } from '../tiles/request.ts';
import { readEmbedded } from './offline.ts';
import type { JobReply, RecordingReply, RunsReply, TotalReply, WindowReply } from './types.ts';

const offline = readEmbedded();

/** True in a report that is one file: there is no server to ask. */
export const isOffline = offline !== null;

/** True in a page of the sums of all runs: there is no run to open. */
export const isTable = offline?.isTable ?? false;

/** What a report in one file opens on, where its link says nothing else. */
export const openAtFirst: readonly string[] = offline?.shown ?? [];

/** What went wrong, in a line a person can act upon. */
export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
  ) {
    super(message);
    this.name = 'ApiError';
  }
}

async function get(path: string, query: Record<string, string>, signal?: AbortSignal): Promise<Response> {
  const search = new URLSearchParams(query).toString();
  let reply: Response;
  try {
    reply = await fetch(search ? `${path}?${search}` : path, { signal: signal ?? null });
  } catch (error) {
    if ((error as Error).name === 'AbortError') throw error;
    throw new ApiError('TensorBoard does not answer. Is it still running?', 0);
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
  throw new ApiError(message, reply.status);
}

export async function fetchRuns(signal?: AbortSignal): Promise<RunsReply> {
  return offline ? offline.runs() : ((await (await get('./runs', {}, signal)).json()) as RunsReply);
}

/** Null in a report in one file that holds no sums. */
export async function fetchTotal(): Promise<TotalReply | null> {
  return offline ? offline.total() : ((await (await get('./total', {})).json()) as TotalReply);
}

export async function fetchRecording(id: string, signal?: AbortSignal): Promise<RecordingReply> {
  if (!offline) return (await (await get('./recording', { id }, signal)).json()) as RecordingReply;
  const found = offline.recording(id);
  if (!found) throw new ApiError('This report does not hold that recording.', 404);
  return found;
}

export async function fetchJob(id: string, signal?: AbortSignal): Promise<JobReply | null> {
  return offline ? offline.job(id) : ((await (await get('./job', { id }, signal)).json()) as JobReply);
}

export async function fetchWindow(id: string, window: number, signal?: AbortSignal): Promise<WindowReply> {
  if (!offline) return (await (await get('./window', { id, window: String(window) }, signal)).json()) as WindowReply;
  const found = offline.window(id, window);
  if (!found) throw new ApiError('This report does not hold that profiler window.', 404);
  return found;
}

let profile: Promise<boolean> | undefined;

/** Whether this TensorBoard has the Profile plugin; asked once. */
export function hasProfilePlugin(): Promise<boolean> {
  if (offline) return Promise.resolve(false);
  return (profile ??= get('../../plugins_listing', {})
    .then((reply) => reply.json())
    .then((listing: unknown) => typeof listing === 'object' && listing !== null && Object.hasOwn(listing, 'profile'))
    .catch(() => false));
}

export async function fetchTiles(request: TileRequest, signal?: AbortSignal): Promise<TileBlock> {
  if (offline) return offline.tiles(request);
  const reply = await get(
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
