/**
 * The fonts, loaded by script: a rule `@font-face` means nothing inside a shadow root, where OGraf puts graphics.
 *
 * One family for all alphabets, so that a line with two of them has one size and one weight. A browser loads a file
 * when the first character of its range is shown.
 */
import archivo from "@fontsource-variable/archivo/files/archivo-latin-wdth-normal.woff2";
import archivoExtended from "@fontsource-variable/archivo/files/archivo-latin-ext-wdth-normal.woff2";
import archivoVietnamese from "@fontsource-variable/archivo/files/archivo-vietnamese-wdth-normal.woff2";
import arabic from "@fontsource-variable/noto-sans-arabic/files/noto-sans-arabic-arabic-wght-normal.woff2";
import hebrew from "@fontsource-variable/noto-sans-hebrew/files/noto-sans-hebrew-hebrew-wght-normal.woff2";
import cyrillic from "@fontsource-variable/sofia-sans-condensed/files/sofia-sans-condensed-cyrillic-wght-normal.woff2";
import greek from "@fontsource-variable/sofia-sans-condensed/files/sofia-sans-condensed-greek-wght-normal.woff2";

const FACES: readonly [url: string, range: string][] = [
  [
    archivo,
    "U+0000-00FF, U+0131, U+0152-0153, U+02BB-02BC, U+02C6, U+02DA, U+02DC, U+2000-206F, U+20AC, U+2122, U+2212",
  ],
  [
    archivoExtended,
    "U+0100-0130, U+0132-0151, U+0154-02BA, U+02BD-02C5, U+1E00-1E9F, U+1EF2-1EFF, U+20A0-20AB, U+20AD-20C0",
  ],
  [archivoVietnamese, "U+0300-0304, U+0308-0309, U+0323, U+0329, U+1EA0-1EF1"],
  [cyrillic, "U+0400-045F, U+0490-0491, U+04B0-04B1, U+2116"],
  [greek, "U+0370-03FF"],
  [hebrew, "U+0590-05FF, U+FB1D-FB4F"],
  [arabic, "U+0600-06FF, U+0750-077F, U+08A0-08FF, U+FB50-FDFF, U+FE70-FEFF"],
];

let isAdded = false;

/** Makes the fonts known to the document, once, and calls back when more of them have come. */
export function useFonts(onLoaded: () => void): void {
  document.fonts.addEventListener("loadingdone", onLoaded);
  if (isAdded) return;
  isAdded = true;
  for (const [url, unicodeRange] of FACES) {
    const source = `url("${new URL(url, import.meta.url).href}") format("woff2")`;
    document.fonts.add(
      new FontFace("Onair", source, { weight: "100 900", stretch: "62% 125%", unicodeRange }),
    );
  }
}

/** Resolves when the fonts of Latin text are there, or after two seconds: a graphic without them is better than none. */
export async function awaitFonts(): Promise<void> {
  const loaded = document.fonts.load('700 40px "Onair"', "Aa0");
  await Promise.race([loaded.catch(() => {}), new Promise((resolve) => setTimeout(resolve, 2_000))]);
}
