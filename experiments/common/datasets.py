"""Real tables: private rows, test rows, and a schema from documentation.

--data_dir names the folder of the files, which are not part of the project. A schema is public: categories and bounds
are documented for a data set, or round numbers, and never read from its rows. The schema clamps values beyond a bound,
in controls as in releases.
"""

from __future__ import annotations

import json
import pathlib
import re
import zipfile
import zlib
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from experiments.common.dataset_rows import Dataset, count, read, split, words
from experiments.common.errors import input_errors
from kme_jax.table.columns import Categorical, Column, Numeric
from kme_jax.table.schema import Schema

# --- the benchmark ---------------------------------------------------------------------------------------------------


def adult_schema() -> Schema:
    """Of the raw UCI Adult: names and categories of adult.names, "?" as missing in the three columns that have it
    according to the UCI page."""
    return Schema(
        (
            # adult.names: AAGE > 16; the Current Population Survey reports ages of 90 and more as 90.
            count("age", 90, 17),
            words(
                "workclass",
                "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked",
                nullable=True,
            ),
            count("fnlwgt", 1_500_000),  # people whom one row stands for: a round bound
            words(
                "education",
                "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters 1st-4th "
                "10th Doctorate 5th-6th Preschool",
            ),
            count("education-num", 16, 1),  # a number for each of the 16 levels of education
            words(
                "marital-status",
                "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse",
            ),
            words(
                "occupation",
                "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
                "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv "
                "Armed-Forces",
                nullable=True,
            ),
            words("relationship", "Wife Own-child Husband Not-in-family Other-relative Unmarried"),
            words("race", "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
            words("sex", "Female Male"),
            # Dollars; the survey reports gains of five digits, losses of four, and two digits of hours (HRSWK > 0).
            count("capital-gain", 99_999),
            count("capital-loss", 9999),
            count("hours-per-week", 99, 1),
            words(
                "native-country",
                "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan "
                "Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal "
                "Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua "
                "Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands",
                nullable=True,
            ),
            words("income", "<=50K >50K"),
        )
    )


def _adult(folder: pathlib.Path, seed: int) -> Dataset:
    """The publisher's split, whatever the seed; the test file begins with a line that is no row."""
    schema = adult_schema()
    private = read(folder / "adult/adult.data.gz", schema)
    return Dataset("adult", private, read(folder / "adult/adult.test.gz", schema, skip_rows=1), schema, "income")


def _adult_pgm(folder: pathlib.Path, seed: int) -> Dataset:
    """Adult as the private-pgm benchmarks encode it: integer codes, whose numbers are in the published domain."""
    ordered = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
    domain = json.loads((folder / "adult_pgm/adult-domain.json").read_text())
    columns = [
        count(name, size - 1) if name in ordered else Categorical(name, tuple(map(str, range(size))))
        for name, size in domain.items()
    ]
    schema = Schema(tuple(columns))
    rows = read(folder / "adult_pgm/adult.csv", schema, skip_rows=1)
    return split("adult_pgm", rows, schema, "income>50K", seed)


# KDD Cup 1999, "training_attack_types": what each label is an instance of.
_ATTACKS = {
    "normal": ("normal",),
    "dos": ("back", "land", "neptune", "pod", "smurf", "teardrop"),
    "probe": ("ipsweep", "nmap", "portsweep", "satan"),
    "r2l": ("ftp_write", "guess_passwd", "imap", "multihop", "phf", "spy", "warezclient", "warezmaster"),
    "u2r": ("buffer_overflow", "loadmodule", "perl", "rootkit"),
}
# Services and flags as the header of the derived NSL-KDD lists them.
_SERVICES = (
    "aol auth bgp courier csnet_ns ctf daytime discard domain domain_u echo eco_i ecr_i efs exec finger ftp ftp_data "
    "gopher harvest hostnames http http_2784 http_443 http_8001 imap4 IRC iso_tsap klogin kshell ldap link login mtp "
    "name netbios_dgm netbios_ns netbios_ssn netstat nnsp nntp ntp_u other pm_dump pop_2 pop_3 printer private red_i "
    "remote_job rje shell smtp sql_net ssh sunrpc supdup systat telnet tftp_u tim_i time urh_i urp_i uucp uucp_path "
    "vmnet whois X11 Z39_50"
)


def intrusion_schema() -> Schema:
    """Of KDD Cup 1999: columns in the order of kddcup.names, whether symbolic or not from there, except that two 0/1
    columns it calls continuous are categories."""

    def flag(name: str) -> Categorical:
        return words(name, "0 1")

    def rate(name: str) -> Numeric:
        return Numeric(name, 0, 1, step=0.01)  # written with two decimals

    of_service = ("serror_rate", "srv_serror_rate", "rerror_rate", "srv_rerror_rate", "same_srv_rate", "diff_srv_rate")
    of_host = ("same_srv_rate", "diff_srv_rate", "same_src_port_rate", "srv_diff_host_rate")
    of_host += ("serror_rate", "srv_serror_rate", "rerror_rate", "srv_rerror_rate")
    return Schema(
        (
            count("duration", 86_400),  # seconds: a day
            words("protocol_type", "tcp udp icmp"),
            words("service", _SERVICES, default="other"),
            words("flag", "OTH REJ RSTO RSTOS0 RSTR S0 S1 S2 S3 SF SH"),
            # Bytes: more than a mebibyte counts as a mebibyte.
            *(count(name, 2**20) for name in ("src_bytes", "dst_bytes")),
            flag("land"),
            # Counts of events within one connection: round bounds.
            *(count(name, 10) for name in ("wrong_fragment", "urgent")),
            count("hot", 100),
            count("num_failed_logins", 10),
            flag("logged_in"),
            count("num_compromised", 1000),
            flag("root_shell"),
            words("su_attempted", "0 1 2"),
            count("num_root", 1000),
            count("num_file_creations", 100),
            *(count(name, 10) for name in ("num_shells", "num_access_files", "num_outbound_cmds")),
            flag("is_host_login"),
            flag("is_guest_login"),
            # Connections within two seconds, and among the last ones to a host: counters of nine and of eight bits.
            *(count(name, 511) for name in ("count", "srv_count")),
            *map(rate, of_service),
            rate("srv_diff_host_rate"),
            *(count(name, 255) for name in ("dst_host_count", "dst_host_srv_count")),
            *(rate(f"dst_host_{name}") for name in of_host),
            Categorical("class", tuple(_ATTACKS)),
        )
    )


def _intrusion(folder: pathlib.Path, seed: int) -> Dataset:
    """A random split of the 10 % file, with five classes, as in the SDGym benchmark that DP-MERF used.

    The official test file has other attacks in other proportions, so it does not show how well rows are released.
    """
    schema = intrusion_schema()
    rows = read(folder / "intrusion/kddcup.data_10_percent.gz", schema)
    labels = {label: name for name, attacks in _ATTACKS.items() for label in attacks}
    index = pc.index_in(rows["class"], value_set=pa.array(list(labels)))
    rows = rows.set_column(rows.num_columns - 1, "class", pa.array(list(labels.values())).take(index))
    return split("intrusion", rows, schema, "class", seed)


# --- for validation --------------------------------------------------------------------------------------------------

_NOT_KNOWN = "not known"  # in place of the category NA, which many programs read as a missing cell


def _census(folder: pathlib.Path, seed: int) -> Dataset:
    """Part of UCI Census-Income: the official test file, split at random. Columns and categories are read from
    census-income.names, which also says to ignore the weights."""
    lines = (folder / "census/census-income.names").read_text().splitlines()
    documented = dict(match.groups() for line in lines if (match := re.fullmatch(r"([^|:]+): (.*)\.", line)))
    # Ages as in Adult; cents an hour of four digits, dollars of five or four; weeks of a year.
    uppers = {"age": 90, "wage per hour": 9999, "capital gains": 99_999, "capital losses": 9999}
    uppers |= {"dividends from stocks": 99_999, "num persons worked for employer": 6, "weeks worked in year": 52}
    incomplete = ("state of previous", "migration", "country of birth")  # where the file has "?" (UCI page)
    columns: list[Column] = []
    for name, values in documented.items():
        if values == "continuous":
            columns += [count(name, uppers[name])] if name in uppers else []
        else:
            categories = tuple(_NOT_KNOWN if value.strip() == "NA" else value.strip() for value in values.split(","))
            columns.append(Categorical(name, categories, nullable=name.startswith(incomplete)))
    schema = Schema((*columns, Categorical("income", ("- 50000", "50000+"))))
    with zipfile.ZipFile(folder / "census/census-income.test.zip") as archive:
        rows = read(archive.open("census-income.test"), schema, (*documented, "income"))
    for j, column in enumerate(schema.columns):
        if column.kind == "categorical":
            cells = rows[column.name]
            rows = rows.set_column(j, column.name, pc.if_else(pc.equal(cells, "NA"), _NOT_KNOWN, cells))
    return split("census", rows, schema, "income", seed)


def _covtype(folder: pathlib.Path, seed: int) -> Dataset:
    """Part of UCI Covertype, the first 20 000 rows: columns and units of covtype.info."""
    schema = Schema(
        (
            # Metres, degrees, metres to water (down: negative) and roads: round bounds. Hillshade is documented.
            count("Elevation", 4000, 1500),
            count("Aspect", 360),
            count("Slope", 90),
            count("Horizontal_Distance_To_Hydrology", 2000),
            count("Vertical_Distance_To_Hydrology", 1000, -500),
            count("Horizontal_Distance_To_Roadways", 8000),
            *(count(f"Hillshade_{time}", 255) for time in ("9am", "Noon", "3pm")),
            count("Horizontal_Distance_To_Fire_Points", 8000),
            *(words(f"Wilderness_Area{i}", "0 1") for i in range(1, 5)),
            *(words(f"Soil_Type{i}", "0 1") for i in range(1, 41)),
            words("Cover_Type", "1 2 3 4 5 6 7"),
        )
    )
    rows = read(folder / "covtype/covtype.first20k.data.gz", schema)
    return split("covtype", rows, schema, "Cover_Type", seed)


def _credit(folder: pathlib.Path, seed: int) -> Dataset:
    """Part of the Kaggle credit card transactions: all frauds and 4800 others."""
    schema = Schema(
        (
            count("Time", 172_800),  # seconds of the two days that Kaggle's page speaks of
            *(Numeric(f"V{i}", -20, 20) for i in range(1, 29)),  # scores of principal components: round bounds
            Numeric("Amount", 0, 10_000, step=0.01),  # euros: a round bound
            words("Class", "0 1"),
        )
    )
    rows = read(folder / "credit/creditcard_492fraud_4800neg.csv.gz", schema, skip_rows=1)
    return split("credit", rows, schema, "Class", seed)


def _cervical(folder: pathlib.Path, seed: int) -> Dataset:
    """UCI Cervical cancer (Risk Factors), all 858 rows: nearly every answer may be missing. Bounds are round."""

    def answer(name: str) -> Categorical:
        return words(name, "0.0 1.0", nullable=True)

    def years(name: str, upper: int) -> Numeric:
        return Numeric(name, 0, upper, step=0.01, nullable=True)

    diseases = ("condylomatosis", "cervical condylomatosis", "vaginal condylomatosis", "vulvo-perineal condylomatosis")
    diseases += ("syphilis", "pelvic inflammatory disease", "genital herpes", "molluscum contagiosum")
    diseases += ("AIDS", "HIV", "Hepatitis B", "HPV")
    certain = ("Dx:Cancer", "Dx:CIN", "Dx:HPV", "Dx", "Hinselmann", "Schiller", "Citology", "Biopsy")
    schema = Schema(
        (
            count("Age", 90, 10),
            count("Number of sexual partners", 30, nullable=True),
            count("First sexual intercourse", 40, 10, nullable=True),
            count("Num of pregnancies", 15, nullable=True),
            answer("Smokes"),
            years("Smokes (years)", 50),
            years("Smokes (packs/year)", 50),
            answer("Hormonal Contraceptives"),
            years("Hormonal Contraceptives (years)", 30),
            answer("IUD"),
            years("IUD (years)", 20),
            answer("STDs"),
            count("STDs (number)", 10, nullable=True),
            *(answer(f"STDs:{disease}") for disease in diseases),
            count("STDs: Number of diagnosis", 10),
            *(count(f"STDs: Time since {which} diagnosis", 30, nullable=True) for which in ("first", "last")),
            *(words(name, "0 1") for name in certain),
        )
    )
    rows = read(folder / "cervical/kag_risk_factors_cervical_cancer.csv", schema, skip_rows=1)
    return split("cervical", rows, schema, "Biopsy", seed)


_RECORDING = r"([SFNOZ]\d{3})\.\d\d"  # of the Bonn EEG: a set of patients, a number within it, and a chunk of a second


def _epileptic(folder: pathlib.Path, seed: int) -> Dataset:
    """UCI Epileptic Seizure Recognition: 23 chunks of a second each of 500 recordings, and whether there is a seizure.

    The converter has 12 bits. All chunks of a recording are on one side of the split.
    """
    path = folder / "epileptic/epileptic_bonn_chunks_11500x178.csv.gz"
    seconds = tuple(count(f"X{i}", 2047, -2048) for i in range(1, 179))
    schema = Schema((*seconds, words("seizure", "no yes")))
    in_file = Schema((Categorical("id", ("S001.01",)), *seconds, words("y", "1 2 3 4 5")))
    rows = read(path, in_file, skip_rows=1)
    if not pc.all(pc.match_substring_regex(rows["id"], f"^{_RECORDING}$")).as_py():
        raise ValueError(f"{path}: ids must be those of recordings and chunks, such as S001.01")
    recordings = pc.utf8_slice_codeunits(rows["id"], 0, 4).combine_chunks().dictionary_encode()
    seizure = pc.if_else(pc.equal(rows["y"], "1"), "yes", "no")
    rows = rows.drop_columns(["id", "y"]).append_column("seizure", seizure)
    return split("epileptic", rows, schema, "seizure", seed, recordings.indices.to_numpy())


_VOWELS = 1, 5, 9, 15, 21  # numbers of A, E, I, O and U


def _isolet(folder: pathlib.Path, seed: int) -> Dataset:
    """Part of UCI ISOLET, isolet1: sounds of 1560 spoken letters, scaled to [−1, 1], and whether they are vowels.

    Rows of one speaker are on both sides of the split: the file does not say whose they are.
    """
    # Imported here: the memory of a release, in a process that imports this module, is measured.
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    path = folder / "isolet/isolet1_1560x617.mat"
    numbers = tuple(Numeric(f"X{i}", -1, 1) for i in range(1, 618))
    schema = Schema((*numbers, words("vowel", "no yes")))
    with path.open("rb") as file:
        try:
            content = loadmat(file)
            sounds, letters = content["fea"], content["gnd"].reshape(-1)
        except (KeyError, TypeError, IndexError, OSError, MatReadError, zlib.error) as error:
            raise ValueError(f"{path}: is not the file with the arrays fea and gnd; fetch it again") from error
    if sounds.shape != (len(letters), len(numbers)):
        raise ValueError(f"{path}: expected {len(numbers)} columns and as many labels as rows, got {sounds.shape}")
    columns = {column.name: pa.array(sounds[:, j]) for j, column in enumerate(numbers)}
    rows = pa.table(columns | {"vowel": np.where(np.isin(letters, _VOWELS), "yes", "no")})
    return split("isolet", rows, schema, "vowel", seed)


_LOADERS: dict[str, Callable[[pathlib.Path, int], Dataset]] = {
    "adult": _adult,
    "adult_pgm": _adult_pgm,
    "intrusion": _intrusion,
    "census": _census,
    "covtype": _covtype,
    "credit": _credit,
    "cervical": _cervical,
    "epileptic": _epileptic,
    "isolet": _isolet,
}
NAMES = tuple(_LOADERS)


def load(name: str, data_dir: str, seed: int = 0) -> Dataset:
    """A data set.

    Args:
      name: one of ``NAMES``.
      data_dir: the folder with a folder for each data set.
      seed: of the split into private rows and test rows. A publisher's split needs none.

    Raises:
      InputError: if a file is missing or cannot be read.
    """
    with input_errors(f"--data_dir={data_dir}: data set {name}: "):
        try:
            return _LOADERS[name](pathlib.Path(data_dir), seed)
        except FileNotFoundError:
            raise
        except (pa.ArrowInvalid, OSError, zipfile.BadZipFile) as error:
            raise ValueError(f"{error}; the file is cut or another one: fetch it again") from error
