/** Shows the whole tab without a browser, on replies that were recorded by `python -m harness.replies`. */
import { renderToString } from 'preact-render-to-string';
import type { JobReply, RecordingReply, RunsReply, TotalReply } from '../api/types.ts';
import { App } from '../state/app.ts';
import { Loader } from '../state/loader.ts';
import { Timeline } from '../timeline/timeline.ts';
import { Root } from './app.tsx';
import { provideTab } from './hooks.ts';
import { headline } from '../state/findings.ts';

export interface Replies {
  runs: RunsReply;
  total: TotalReply;
  recording: Record<string, RecordingReply>;
  job: JobReply;
}

// A frame of no height: nothing is drawn in it, and the server is asked once.
Object.assign(globalThis, { innerHeight: 0, innerWidth: 1440, document: { hidden: false }, matchMedia: () => ({ matches: true }) });

/** The tab once it has asked a server that answers so; it refuses what is not among the replies. */
export async function opened(replies: Partial<Replies>, id: string | null = null): Promise<App> {
  globalThis.fetch = async (address) => {
    const { pathname, searchParams } = new URL(String(address), 'http://server/');
    const reply = replies[pathname.slice(1) as keyof Replies];
    const body = pathname === '/recording' ? replies.recording?.[searchParams.get('id') ?? ''] : reply;
    return body ? Response.json(body) : Response.json({ error: 'the disk is on <b>fire</b>' }, { status: 400 });
  };
  const app = new App();
  if (id !== null) app.choose(id);
  const loader = new Loader(app, () => undefined);
  provideTab({ app, timeline: new Timeline(app), refresh: () => undefined });
  await loader.refresh();
  for (let turn = 0; turn < 9; turn++) await new Promise((done) => setTimeout(done)); // the job, and its worst worker
  const first = app.recording && (headline(app.recording.report, app.state.get().job).fix ?? app.rows[0]);
  if (first) app.select(first.first.id);
  return app;
}

/** The elements of the page with a class, as HTML. */
export function elements(name: string): string[] {
  const html = renderToString(<Root />);
  const attributes = '(?:[^>"]|"[^"]*")*';
  return [...html.matchAll(new RegExp(`<(\\w+)(?:${attributes} )?class="(?:[^"]* )?${name}(?: [^"]*)?"${attributes}>`, 'g'))].map((begin) => {
    let depth = 0;
    for (const tag of html.slice(begin.index).matchAll(new RegExp(`<(/?)${begin[1]}\\b${attributes}>`, 'g'))) {
      depth += tag[1] ? -1 : 1;
      if (depth === 0) return html.slice(begin.index, begin.index + tag.index + tag[0].length);
    }
    throw new Error(`${name} does not end`);
  });
}

/** What a person reads of each element with a class; any space is a space. */
export const texts = (name: string): string[] =>
  elements(name).map((html) =>
    html
      .replace(/<(summary|p|li|dt|dd|td|th|tr|h\d|pre|div)\b/g, ' <$1')
      .replace(/<[^>]*>/g, '')
      .replace(/&lt;/g, '<')
      .replace(/&quot;/g, '"')
      .replace(/&amp;/g, '&')
      .replace(/\s+/g, ' ')
      .trim(),
  );

/** What a person reads of the one element with a class; none is an error. */
export function text(name: string): string {
  const [first, ...others] = texts(name);
  if (first === undefined || others.length > 0) throw new Error(`${others.length + (first === undefined ? 0 : 1)} elements .${name}`);
  return first;
}
