/**
 * Who is logged in, and for how long.
 *
 * The token lives in memory; in `sessionStorage` only if the user wishes so. When it ends, or the broker refuses
 * it, `isOver` becomes true and whoever asks for a token waits until the same user has logged in again: calls that
 * were under way go on then, and nothing on the screen is lost.
 */
import { computed, signal } from "@preact/signals";
import { ApiError, Client } from "../../client/src/index.js";
import { forgetDrafts } from "./drafts.js";

export type Role = "admin" | "producer" | "user" | "client";

export interface Login {
  token: string;
  /** Milliseconds since 1970 by this machine's clock. */
  endsMs: number;
  username: string;
  userId: string;
  account: string;
  role: Role;
}

export interface Credentials {
  username: string;
  password: string;
  isKept: boolean;
}

const KEY = "onair-login";
const CLIENT_ID = "WebProducerDashboard";
const SOON_MS = 300_000;
const LATEST_MS = 0x7fffffff; // of a browser's timer

export const login = signal<Login | undefined>(undefined);
/** The log-in has ended; the user is asked for it again. */
export const isOver = signal(false);
/** It ends within minutes: there is time to log in again before. */
export const endsSoon = signal(false);

export const role = computed<Role>(() => login.value?.role ?? "client");
export const isAdmin = computed(() => role.value === "admin");
/** Who may publish and manage what is in a project. */
export const isPublisher = computed(() => role.value === "admin" || role.value === "producer");
/** Everybody but end-user applications. */
export const isReader = computed(() => role.value !== "client");

let waiting: ((token: string) => void)[] = [];
let timers: ReturnType<typeof setTimeout>[] = [];

/** A token that is still good; waits for a new log-in where there is none. */
export function currentToken(): Promise<string> {
  const { value } = login;
  if (value && !isOver.peek() && value.endsMs > Date.now()) return Promise.resolve(value.token);
  if (value) isOver.value = true;
  return new Promise((resolve) => waiting.push(resolve));
}

/** The broker has refused this token. */
export function refuse(token: string): void {
  if (login.peek()?.token === token) isOver.value = true;
}

/** Sends something with a token. Where the broker refuses that one, it is sent once more with the next. */
export async function withToken<T>(send: (token: string) => Promise<T>): Promise<T> {
  const token = await currentToken();
  try {
    return await send(token);
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 401) throw error;
    refuse(token);
    return await send(await currentToken());
  }
}

/** Logs in with a password, or again after the end. Throws what the broker says. */
export async function logIn({ username, password, isKept }: Credentials): Promise<void> {
  await exchange({ grant_type: "password", client_id: CLIENT_ID, username, password }, username, isKept);
}

/** Logs in with an API token. */
export async function logInWithToken(token: string, isKept: boolean): Promise<void> {
  await exchange({ grant_type: "api_token", client_id: CLIENT_ID, token }, "", isKept);
}

/** Forgets the token and what was typed. */
export function logOut(): void {
  sessionStorage.removeItem(KEY);
  forgetDrafts();
  location.hash = "";
  location.reload(); // nothing of this user stays in memory
}

/** Takes up the log-in that the user wished to keep in this tab. */
export function restore(): void {
  try {
    const kept = JSON.parse(sessionStorage.getItem(KEY) ?? "null") as Login | null;
    if (kept && kept.endsMs > Date.now()) accept(kept);
  } catch {
    sessionStorage.removeItem(KEY);
  }
}

/** Whether the log-in is kept in this tab. */
export function isKept(): boolean {
  return sessionStorage.getItem(KEY) !== null;
}

async function exchange(body: Record<string, string>, username: string, isKept: boolean): Promise<void> {
  const client = new Client(location.origin, { visitorId: "dashboard" });
  try {
    const sending = { body, deadlineMs: 10_000 };
    const { access_token: token, expires_in } = await client.request("POST", "/token", sending as never);
    const { sub, acc, role } = claimsOf(token);
    const name = username || (await nameOf(token));
    const endsMs = Date.now() + expires_in * 1000;
    const next: Login = { token, endsMs, username: name, userId: sub, account: acc, role };
    if (login.peek() && login.peek()?.userId !== sub) return logOut();
    if (isKept) sessionStorage.setItem(KEY, JSON.stringify(next));
    else sessionStorage.removeItem(KEY);
    accept(next);
  } finally {
    client.close();
  }
}

function accept(next: Login): void {
  login.value = next;
  isOver.value = endsSoon.value = false;
  timers.forEach(clearTimeout);
  const leftMs = next.endsMs - Date.now();
  const at = (ms: number, run: () => void) => setTimeout(run, Math.min(ms, LATEST_MS));
  timers = [at(leftMs, () => (isOver.value = true))];
  if (leftMs > 2 * SOON_MS) timers.push(at(leftMs - SOON_MS, () => (endsSoon.value = true)));
  const all = waiting;
  waiting = [];
  for (const resolve of all) resolve(next.token);
}

/** The claims of a token; the broker checks them, we only show what they allow. */
function claimsOf(token: string): { sub: string; acc: string; role: Role } {
  const text = (token.split(".")[1] ?? "").replace(/-/g, "+").replace(/_/g, "/");
  return JSON.parse(atob(text));
}

async function nameOf(token: string): Promise<string> {
  const client = new Client(location.origin, { token, visitorId: "dashboard" });
  try {
    return (await client.request("GET", "/users/me")).username;
  } finally {
    client.close();
  }
}
