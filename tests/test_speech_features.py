"""Sound and features: files, filterbanks, cepstra, normalisation, masks."""

import math
import sys
import wave

import numpy as np
import pytest
import torch

from ssgd.lab.data.faults import Unusable
from ssgd.lab.data.speech.audio import read_audio, samples
from ssgd.lab.data.speech.features import Cepstra, LogMel, SpecAugment, log_mel, read_mfc
from ssgd.lab.data.speech.frames import by_group
from ssgd.lab.data.speech.utterances import Clip, Utterance

from .speech_files import sound, write_mfc, write_sphere, write_wav


def utterance(*clips, key="u"):
    return Utterance(key, "YES", tuple(clips))


@pytest.fixture(params=["with soundfile", "without"])
def soundfile(request, monkeypatch):
    """Whether soundfile can be imported."""
    if request.param == "without":
        monkeypatch.setitem(sys.modules, "soundfile", None)
    else:
        pytest.importorskip("soundfile", reason="needs soundfile")


# --- files ----------------------------------------------------------------------------------------------------------


def test_wav_and_sphere_give_the_same_samples(tmp_path, soundfile):
    expected = torch.from_numpy(sound().astype(np.float32) / 32768)
    for path in (
        write_wav(tmp_path / "a.wav", sound()),
        write_sphere(tmp_path / "a.wv1", sound()),
        write_sphere(tmp_path / "b.wv1", sound(), order="10"),
    ):
        read, rate = read_audio(path)
        assert rate == 16000 and torch.equal(read, expected)


def test_broken_and_missing_audio(tmp_path, soundfile):
    (tmp_path / "empty.wav").write_bytes(b"")
    (tmp_path / "words.wav").write_bytes(b"these are words and no sound " * 9)
    (tmp_path / "long.wav").write_bytes(b"RIFF\x24\0\0\0WAVEjunk" + 2000 * b"\0\1")  # a part longer than the whole
    for name in ("empty.wav", "words.wav", "long.wav"):
        with pytest.raises(Unusable, match=f"{name} cannot be read as audio") as fault:
            read_audio(tmp_path / name)
        assert fault.value.kind == "broken audio"
    with pytest.raises(Unusable, match=r"none\.wav is not there") as fault:
        read_audio(tmp_path / "none.wav")
    assert fault.value.kind == "missing audio"


def test_without_soundfile_other_wavs_name_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(8000)
        file.writeframes(b"\x80" * 99)
    with pytest.raises(Unusable, match=r"8 bits a sample: `pip install soundfile`"):
        read_audio(tmp_path / "a.wav")


def test_a_wav_that_is_cut_is_noticed(tmp_path, soundfile):
    path = write_wav(tmp_path / "a.wav", sound())
    content = path.read_bytes()
    for length in (len(content) - 1, len(content) // 2, 44):
        path.write_bytes(content[:length])
        with pytest.raises(Unusable, match=rf"a\.wav is cut: {length - 44} of its 16000 bytes are there"):
            read_audio(path)
    path.write_bytes(content[:40])
    with pytest.raises(Unusable, match=r"a\.wav cannot be read as audio"):
        read_audio(path)


@pytest.mark.parametrize("length", [2**32 - 1, 0x7FFFF000])
def test_a_wav_from_a_pipe_does_not_know_its_length(tmp_path, soundfile, length):
    path = write_wav(tmp_path / "a.wav", sound())
    expected, _ = read_audio(path)
    content = path.read_bytes()
    path.write_bytes(content[:40] + length.to_bytes(4, "little") + content[44:])
    assert torch.equal(read_audio(path)[0], expected)
    path.write_bytes(content[:40] + length.to_bytes(4, "little") + content[44:-1])
    assert torch.equal(read_audio(path)[0], expected[:-1])


@pytest.mark.parametrize("read", [read_audio, read_mfc])
def test_a_file_that_may_not_be_read_and_one_that_cannot_be(tmp_path, read, monkeypatch):
    with pytest.raises(Unusable, match="is not there, or may not be read"):
        read(tmp_path / ("yes " * 100))  # longer than a name may be
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(Unusable, match=r"a\.wav is not there, or may not be read"):
        read(write_wav(tmp_path / "a.wav", sound()))


@pytest.mark.parametrize("end", [math.nan, math.inf, 1e305])
def test_an_end_that_is_no_time_is_named(tmp_path, end):
    path = write_wav(tmp_path / "a.wav", sound())
    _, rate = read_audio(path)
    with pytest.raises(Unusable, match=f"0.0 to {end} s is not in it".replace("+", "\\+")):
        samples(Utterance("u", "yes", (Clip(path, 0.0, end),), "", "here:1"), rate)


def test_a_recording_without_sound_is_named(tmp_path):
    path = write_wav(tmp_path / "a.wav", sound()[:0])
    with pytest.raises(Unusable, match=r"a\.wav lasts 0\.00 s: there is nothing from 0\.0 s on"):
        samples(Utterance("u", "yes", (Clip(path, 0.0, None),), "", "here:1"), read_audio(path)[1])


def test_audio_of_more_samples_than_memory_holds_is_named(tmp_path):
    soundfile = pytest.importorskip("soundfile", reason="needs soundfile")
    soundfile.write(tmp_path / "a.flac", sound(), 16000)
    content = bytearray((tmp_path / "a.flac").read_bytes())
    content[21] |= 0x0F  # the highest bits of the count of samples
    (tmp_path / "a.flac").write_bytes(content)
    with pytest.raises(Unusable, match=r"a\.flac cannot be read as audio \(Unable to allocate"):
        read_audio(tmp_path / "a.flac")


def test_audio_without_a_header_is_named(tmp_path):
    pytest.importorskip("soundfile")
    (tmp_path / "a.raw").write_bytes(bytes(1000))
    with pytest.raises(Unusable, match=r"a\.raw cannot be read as audio"):
        read_audio(tmp_path / "a.raw")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"coding": "pcm,embedded-shorten-v2.00"}, r"compressed by shorten: write `sph2pipe -f wav a\.wv1 a\.wav`"),
        ({"coding": "ulaw"}, "is not one channel of 16-bit PCM"),
        ({"channel_count": "-i 2"}, "is not one channel of 16-bit PCM"),
        ({"sample_count": "-i 99999"}, "is cut short: it should have 99999 samples"),
        ({"sample_count": "-i -1"}, "says it has -1 samples at 16000 a second: get it again"),
        ({"sample_rate": "-i 0"}, "says it has 8000 samples at 0 a second: get it again"),
        ({"sample_rate": "-s1 x"}, "lacks a number in its header"),
    ],
)
def test_sphere_files_that_are_not_read(tmp_path, change, sentence):
    with pytest.raises(Unusable, match=sentence):
        read_audio(write_sphere(tmp_path / "a.wv1", sound(), **change))


def test_a_sphere_header_without_end(tmp_path):
    (tmp_path / "a.wv1").write_bytes(b"NIST_1A\n   1024\nsample_count -i 5\n")
    with pytest.raises(Unusable, match="has no end"):
        read_audio(tmp_path / "a.wv1")


def test_clips_one_after_the_other(tmp_path):
    path = write_wav(tmp_path / "a.wav", sound(1.0, 8000), 8000)
    whole, _ = read_audio(path)
    made = samples(utterance(Clip(path, 0.25, 0.5), Clip(None, end=0.1), Clip(path, 0.75)), 8000)
    assert torch.equal(made[:2000], whole[2000:4000]) and torch.equal(made[2800:], whole[6000:])
    hush = made[2000:2800]
    assert 5e-4 < hush.std() < 2e-3
    again = samples(utterance(Clip(None, end=0.1)), 8000)
    assert torch.equal(hush, again) and not torch.equal(hush, samples(utterance(Clip(None, end=0.1), key="v"), 8000))


def test_clips_that_are_not_in_their_file(tmp_path):
    path = write_wav(tmp_path / "a.wav", sound(0.5))
    for clip in (Clip(path, 0.2, 0.6), Clip(path, 0.3, 0.2), Clip(path, 0.7)):
        with pytest.raises(Unusable, match=r"a\.wav lasts 0\.50 s"):
            samples(utterance(clip), 16000)
    with pytest.raises(Unusable, match="has 16000 samples a second, not 8000: resample it"):
        samples(utterance(Clip(path)), 8000)


# --- log-mel --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "mels", "scale"), [(16000, 40, 1.0), (8000, 40, 0.01), (16000, 80, 0.001)])
def test_log_mel_is_kaldis(rate, mels, scale):
    knf = pytest.importorskip("kaldi_native_fbank", reason="needs kaldi-native-fbank")
    options = knf.FbankOptions()
    options.frame_opts.samp_freq, options.frame_opts.dither, options.frame_opts.snip_edges = rate, 0, True
    options.mel_opts.num_bins = mels
    wav = torch.from_numpy(scale * sound(1.0, rate).astype(np.float32) / 32768)
    theirs = knf.OnlineFbank(options)
    theirs.accept_waveform(rate, (wav * 32768).tolist())
    theirs.input_finished()
    expected = np.stack([theirs.get_frame(i) for i in range(theirs.num_frames_ready)])
    ours = log_mel(wav, LogMel(rate=rate, mels=mels))
    assert ours.shape == expected.shape == (98, mels)
    assert np.abs(ours.numpy() - expected).max() < 1e-3


def test_a_tone_is_loudest_in_its_band():
    time = torch.arange(8000) / 16000
    for hertz in (300.0, 1000.0, 4000.0):
        features = log_mel(0.5 * torch.sin(2 * torch.pi * hertz * time), LogMel())
        low, high = (1127 * np.log(1 + f / 700) for f in (20, 8000))
        place = (1127 * np.log(1 + hertz / 700) - low) / (high - low) * 41 - 1
        assert (features.argmax(1) - place).abs().max() <= 1


def test_silence_and_short_sound(tmp_path):
    assert log_mel(torch.zeros(800), LogMel()).isfinite().all()
    path = write_wav(tmp_path / "a.wav", sound(0.02))
    with pytest.raises(Unusable, match="shorter than 25 ms") as fault:
        LogMel()(utterance(Clip(path)))
    assert fault.value.kind == "too short"
    assert LogMel()(utterance(Clip(write_wav(tmp_path / "b.wav", sound(0.1))))).shape == (8, 40)


@pytest.mark.parametrize("loudness", [math.nan, math.inf, 1e30])
def test_samples_that_give_no_finite_features_are_named(tmp_path, loudness):
    soundfile = pytest.importorskip("soundfile", reason="needs soundfile")
    soundfile.write(tmp_path / "a.wav", np.full(1600, loudness, np.float32) * sound(0.1), 16000, "FLOAT")
    with pytest.raises(Unusable, match=r"a\.wav: samples are not finite, or far outside −1 to 1") as fault:
        LogMel()(utterance(Clip(None, end=0.1), Clip(tmp_path / "a.wav")))
    assert fault.value.kind == "broken audio"


@pytest.mark.parametrize(("rate", "mels"), [*((rate, 40) for rate in (-8000, 0, 39, 99, 400, 1000)), (8000, 128)])
def test_bands_that_would_hear_nothing_are_refused(rate, mels):
    with pytest.raises(ValueError, match=f"{mels} bands are too many for sound of {rate} samples a second: use record"):
        LogMel(rate=rate, mels=mels)


# --- cepstra --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", "><")
def test_cepstra_in_either_byte_order(tmp_path, order):
    frames = np.random.default_rng(0).standard_normal((7, 13)).astype(np.float32)
    path = write_mfc(tmp_path / "a.mfc", frames, order)
    assert np.array_equal(read_mfc(path).numpy(), frames)
    assert Cepstra()(utterance(Clip(path), Clip(path))).shape == (14, 13)


def test_cepstra_that_are_broken(tmp_path):
    frames = np.ones((7, 13), np.float32)
    good = write_mfc(tmp_path / "a.mfc", frames).read_bytes()
    for content in (good[:-4], good[:-2], b"", good[:4], write_mfc(tmp_path / "b.mfc", frames[:, :12]).read_bytes()):
        (tmp_path / "c.mfc").write_bytes(content)
        with pytest.raises(Unusable, match=r"c\.mfc is cut short or no \.mfc of 13 coefficients"):
            read_mfc(tmp_path / "c.mfc")
    with pytest.raises(Unusable, match="not finite"):
        read_mfc(write_mfc(tmp_path / "d.mfc", frames * np.nan))
    with pytest.raises(Unusable, match="is not there"):
        read_mfc(tmp_path / "e.mfc")


# --- normalisation and masks ----------------------------------------------------------------------------------------


def test_each_group_has_mean_0_and_variance_1():
    numbers = torch.Generator().manual_seed(0)
    stretches = [i + (1 + i) * torch.randn(50 + i, 3, generator=numbers) for i in range(4)]
    groups = ["a", "b", "a", "b"]
    shift, scale = by_group(groups, stretches)
    for group in "ab":
        mine = [i for i in range(4) if groups[i] == group]
        frames = torch.cat([(stretches[i] - shift[i]) * scale[i] for i in mine])
        assert frames.mean(0).abs().max() < 1e-5 and (frames.var(0, correction=0) - 1).abs().max() < 1e-4
    assert torch.equal(shift[0], shift[2]) and not torch.equal(shift[0], shift[1])


def test_a_feature_that_does_not_move_stays_finite():
    shift, scale = by_group(["a"], [torch.full((5, 2), 7.0)])
    assert torch.equal((torch.full((5, 2), 7.0) - shift) * scale, torch.zeros(5, 2))


def test_masks_are_bands_and_stretches_inside_an_utterance():
    mask = SpecAugment(bands=1, band=0.25, stretches=1, stretch=0.1)
    lengths = torch.tensor([100, 40] * 200)
    kept = mask.kept(mask.drawn(400, torch.Generator().manual_seed(0)), 40, lengths, 120)
    assert kept.shape == (400, 40, 120)
    bands, stretches = (~kept.any(2)).sum(1), (~kept.any(1)).sum(1)
    assert set(bands.tolist()) == set(range(11))
    assert set(stretches[::2].tolist()) == set(range(11)) and set(stretches[1::2].tolist()) == set(range(5))
    assert kept[1::2, :, 40:].any(1).all()  # past the end nothing is masked: all masks lie inside
    assert torch.equal(kept, kept.any(2)[:, :, None] & kept.any(1)[:, None, :])
    for line in (kept.any(2), kept.any(1)):
        assert (line.int().diff(dim=1).abs().sum(1) <= 2).all()  # one piece
