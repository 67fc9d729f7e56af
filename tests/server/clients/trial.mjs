// What the clients' scripts are written with; see trial.py.
import { appendFileSync } from "node:fs";

export const { CLIENT_URL: URL, CLIENT_MODEL: MODEL } = process.env;

export function check(holds, what) {
  if (!holds) throw new Error(what);
}

export async function tried(what, trial) {
  let works = true, note = "";
  try {
    note = (await trial()) ?? "";
  } catch (error) {
    console.error(error);
    [works, note] = [false, String(error).slice(0, 600)];
  }
  appendFileSync(process.env.CLIENT_RECORD, JSON.stringify({ what, works, note }) + "\n");
}
